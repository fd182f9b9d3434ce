/** One run: how it learns, what it is worth, what it was told, what it said. */

import { address, get, part, post } from "../core/api.js";
import { fill, h, settled, write } from "../core/element.js";
import { NOTHING, ago, duration, moment, short } from "../core/format.js";
import * as live from "../core/live.js";
import { shares } from "../charts/bars.js";
import { badge, bar, card, failure, foot, resultFigure, tabs, tile, tileRow, warnings } from "../parts/basics.js";
import { carryOut, complain, question } from "../parts/notices.js";
import { follow } from "../parts/tasks.js";
import { learning } from "./run/learning.js";
import { logOf } from "./run/log.js";
import { result } from "./run/result.js";
import { settings } from "./run/settings.js";

const PHASES = ["environment", "inference", "learning", "other"];

export async function show(host, { parts, asked, signal, title, again }) {
  const path = `api/runs/${part(parts.id)}`;
  let run = await get(path, {}, signal);
  title(run.name);
  const status = h("span");
  const about = h("span");
  const buttons = h("div.actions");
  const task = h("div.stack");
  const notes = h("div.stack");
  const top = topTiles();
  const phases = shares("Where the time goes", PHASES);
  const phaseCard = card("Where the time goes", { about: "of the last update" }, phases.node);
  const learned = learning(run, signal);
  const pages = tabs(
    "Parts of this run",
    [
      ["learning", "Learning", () => [phaseCard, learned.node]],
      [
        "result",
        "Result",
        () => {
          const made = h("div.stack");
          result(made, run, path, signal).catch((error) => !signal.aborted && fill(made, failure(error, again)));
          return made;
        },
      ],
      ["settings", "Settings", () => settings(run)],
      ["log", "Log", () => logOf(`${path}/log`, run, signal)],
    ],
    asked.get("tab") ?? (run.evaluations.length && run.status !== "running" ? "result" : "learning"),
    (key) => {
      history.replaceState(null, "", new URL(`runs/${part(parts.id)}?tab=${key}`, document.baseURI));
    },
  );
  fill(
    host,
    h("div.head", h("div", h("h1", run.name, " "), h("p", status, "· ", about)), buttons),
    task,
    notes,
    top.node,
    pages.node,
    foot(),
  );

  function draw() {
    fill(status, badge(run.status), " ");
    const { population } = run;
    fill(
      about,
      population && [
        "member ",
        String(population.member),
        " of ",
        h("a", { href: `populations/${part(population.name)}` }, `population ${population.name}`),
        population.first === population.last ? `, round ${population.first} · ` : `, rounds ${population.first} to ${population.last} · `,
      ],
      [
        run.env,
        run.algorithm,
        run.seeds > 1 ? `${run.seeds} seeds` : `seed ${run.seed}`,
        run.preset && `preset ${run.preset}`,
        `begun ${moment(run.created)}`,
        run.id,
      ]
        .filter(Boolean)
        .join(" · "),
    );
    drawButtons();
    top.set(run);
    fill(notes, run.error ? failure(new Error(run.error)) : null, warnings(run.overfitting ? [run.overfitting] : []));
    const spent = PHASES.map((name) => run.metrics[`time/${name}`] ?? 0);
    const all = spent.reduce((sum, seconds) => sum + seconds, 0);
    phaseCard.hidden = all === 0;
    phases.set(spent.map((seconds) => seconds / (all || 1)));
  }

  /** Ask for the run again, and show what has changed. */
  async function reload(isResultNew = false, isFirst = true) {
    try {
      run = await get(path, {}, signal);
    } catch (error) {
      if (!signal.aborted) console.warn(error.message);
      return;
    }
    draw();
    if (!isResultNew) return;
    pages.forget("result");
    if (isFirst || pages.node.querySelector("[aria-selected=true]").dataset.key === "result")
      pages.choose("result", true);
  }

  function drawButtons() {
    const act = (name, text, work, kind = null) =>
      run.actions.includes(name) &&
      h(
        "button",
        {
          type: "button",
          class: kind,
          data: { action: name },
          on: { click: (event) => carryOut(event.currentTarget, work) },
        },
        text,
      );
    const job = (verb) => async () => {
      await post(`api/jobs/${part(run.job?.id ?? run.id)}/${verb}`);
      await reload();
    };
    fill(
      buttons,
      act("pause", "Pause", job("pause")),
      act("resume", "Resume", job("resume")),
      act("evaluate", "Evaluate", async () =>
        follow(task, await post(`${path}/evaluate`, {}), signal, (end) => end.status === "done" && reload(true)),
      ),
      act(
        "promote",
        "Promote",
        async () => {
          const wanted = await question(
            "Promote this run?",
            "It becomes the champion only if it stands the checks on data that it never saw. Every look at the test data is counted.",
            {
              yes: "Promote",
              fields: [
                {
                  name: "name",
                  label: "Name of the champion",
                  hint: "Left empty: the name that the command would choose.",
                },
              ],
            },
          );
          if (wanted)
            follow(task, await post(`${path}/promote`, { name: wanted.name || null }), signal, () => reload());
        },
        "main",
      ),
      act(
        "cancel",
        "Cancel",
        async () => {
          if (
            await question(
              "Cancel this training?",
              "It stops after its last checkpoint and leaves the queue. What it has learned so far is kept.",
              { yes: "Cancel the training", danger: true },
            )
          )
            await job("cancel")();
        },
        "danger",
      ),
      h("a.button", { href: `compare?runs=${part(run.id)}` }, "Compare"),
      h("a.button", { href: address("api/metrics.csv", { runs: run.id }).href, download: true }, "Export metrics"),
    );
  }

  draw();
  const soon = settled(300, () => reload());
  live.on("refresh", soon, signal);
  live.on("jobs", ({ jobs }) => jobs.some((job) => job.id === run.id) && soon(), signal);
  const grow = settled(700, () => learned.grow(run).catch((error) => !signal.aborted && complain(error)));
  live.on(
    "runs",
    ({ runs }) => {
      const members = new Set([run.id, ...run.members.map((member) => member.id)]);
      for (const line of runs) {
        if (!members.has(line.id)) continue;
        if (line.id === run.id) {
          const [hasEnded, isScored] = [line.status !== run.status, line.score !== run.score];
          const isFirst = hasEnded || run.score === null; // a later result does not take a reader from what they read
          Object.assign(run, line);
          top.set(run);
          if (hasEnded || isScored) reload(isScored || run.status === "finished", isFirst);
        }
        soon();
        grow();
      }
    },
    signal,
  );
}

function topTiles() {
  const made = {
    steps: tile("Steps"),
    speed: tile("Steps per second"),
    left: tile("Time left"),
    result: tile("Out of sample"),
    baseline: tile("Baseline"),
  };
  const progress = bar("Progress of this run");
  made.steps.node.append(progress.node);
  return {
    node: tileRow(made),
    set(run) {
      const share = run.total_steps ? run.steps / run.total_steps : run.status === "finished" ? 1 : 0;
      progress.set(share);
      made.steps.set(short(run.steps), run.total_steps ? `of ${short(run.total_steps)}` : "");
      const speed = run.status === "running" ? run.steps_per_second : run.mean_steps_per_second;
      const which = run.status === "running" ? "now" : "mean over the run";
      made.speed.set(speed ? short(speed) : NOTHING, [speed && which, run.machine?.cpu].filter(Boolean).join(", "));
      const isOn = run.status === "running" && run.steps_per_second && run.total_steps;
      write(made.left.node.firstChild, run.status === "running" ? "Time left" : "Trained for");
      if (run.status === "running")
        made.left.set(
          isOn ? duration(Math.max(0, run.total_steps - run.steps) / run.steps_per_second) : NOTHING,
          "at this speed",
        );
      else {
        // Not from its first moment to its last: it may have been paused for a night between two sittings.
        const own = run.steps - (run.lineage.findLast(({ parent }) => parent)?.step ?? 0);
        made.left.set(speed ? duration(own / speed) : NOTHING, `ended ${ago(run.updated)}`);
      }
      const { result, held_out: heldOut } = run;
      write(made.result.node.firstChild, heldOut ? "Held out" : "Out of sample");
      if (heldOut)
        made.result.set(resultFigure(heldOut, heldOut.value), `${heldOut.metric}, for choosing settings: no test`);
      else
        made.result.set(
          resultFigure(result, result?.value),
          result
            ? [...new Set([result.metric.replaceAll("_", " "), result.label ?? result.split])].join(", ")
            : "not evaluated yet",
        );
      made.baseline.set(resultFigure(result, result?.baseline?.value), result?.baseline?.label ?? "");
    },
  };
}
