/** One study: its progress, its trials as a table and as pictures, what mattered, and its winner. */

import { get, part, post } from "../core/api.js";
import { fill, h, settled } from "../core/element.js";
import { NOTHING, brief, capital, figure, short, whole } from "../core/format.js";
import * as live from "../core/live.js";
import { bars } from "../charts/bars.js";
import { LineChart } from "../charts/line.js";
import { badge, bar, card, empty, facts, failure, foot, tile, tileRow } from "../parts/basics.js";
import { carryOut, question } from "../parts/notices.js";
import { follow } from "../parts/tasks.js";
import { space } from "./study/space.js";
import { trialsCard } from "./study/trials.js";

export async function show(host, { parts, signal, title, again }) {
  const path = `api/studies/${part(parts.name)}`;
  title(parts.name);
  let study = await get(path, {}, signal);
  const status = h("p");
  const buttons = h("div.actions");
  const task = h("div.stack");
  const top = topTiles();
  const winner = h("div");
  const history = new LineChart("Score of each trial and the best so far", {
    x: "whole",
    y: unit(study),
    height: 280,
    none: "No trial is over yet.",
    signal,
  });
  const pareto = new LineChart("Score against cost of each trial", {
    x: "number",
    y: unit(study),
    height: 280,
    none: "No trial is over yet.",
    signal,
    picked: ({ numbers }, at) => table?.show(numbers[at]),
  });
  const importances = h("div");
  // Thousands of trials take a moment; the rest of the page does not wait for them.
  const slices = h("section.card", h("p.muted", "Reading the trials …"));
  const below = h("div.stack");
  let [table, shape, known] = [null, null, ""];
  fill(
    host,
    h("div.head", h("div", h("h1", study.name), status), buttons),
    task,
    top.node,
    winner,
    h(
      "div.columns",
      card("Progress", { about: "each trial's score, and the best so far" }, history.node),
      card(
        "Score against cost",
        { about: "over seconds of training; click a trial to find it" },
        pareto.node,
      ),
    ),
    h(
      "div.columns",
      card("What mattered", { about: "share of the score's spread that a setting explains" }, importances),
      slices,
    ),
    below,
    foot(),
  );

  function draw() {
    fill(status, badge(study.status, study.phase || study.status), ` · by ${study.score}${study.owner ? ` · of ${study.owner}` : ""}`);
    top.set(study);
    fill(winner, winnerCard(study));
    const { number, value, best } = study.history;
    history.data([
      { label: "trials", name: "others", x: number, y: value, points: true },
      { label: "best so far", name: "agent", x: number, y: best, width: 2.4 },
    ]);
    drawPareto();
    const rows = Object.entries(study.importances ?? {}).sort((a, b) => b[1] - a[1]);
    const most = rows[0]?.[1] || 1;
    fill(
      importances,
      rows.length
        ? bars(
            "Importances",
            rows.slice(0, 12).map(([key, share]) => [key, share / most, figure(share, "percent")]),
          )
        : h("p.muted", "It takes some more trials to tell."),
    );
    fill(
      buttons,
      study.can_promote
        ? h(
            "button",
            {
              type: "button",
              class: "main",
              data: { action: "promote" },
              on: { click: (event) => carryOut(event.currentTarget, promote) },
            },
            "Promote the winner",
          )
        : null,
      h("a.button", { href: `runs?study=${part(study.name)}` }, "Its runs"),
    );
  }

  function drawPareto() {
    const { cost, value, number, front } = study.pareto;
    const order = cost
      .map((_, at) => at)
      .filter((at) => cost[at] !== null && value[at] !== null)
      .sort((a, b) => cost[a] - cost[b]);
    const on = order.filter((at) => front[at]);
    const line = (places, about) => ({
      x: places.map((at) => cost[at]),
      y: places.map((at) => value[at]),
      numbers: places.map((at) => number[at]),
      ...about,
    });
    const lines = [
      line(order, { label: "trials", name: "others", points: true }),
      line(on, { label: "front", name: "agent", width: 2.4 }),
    ];
    pareto.data(lines.filter(({ x }) => x.length));
  }

  async function promote() {
    const wanted = await question(
      "Promote the winner?",
      "It becomes the champion only if deflated Sharpe, the probability of overfitting and fresh seeds agree that it beats the current one. Every look at the test data is counted.",
      {
        yes: "Promote",
        fields: [
          { name: "name", label: "Name of the champion", hint: "Left empty: the name that the command would choose." },
        ],
      },
    );
    if (wanted)
      follow(task, await post(`${path}/promote`, { name: wanted.name || null, margin: 0 }), signal, () => load());
  }

  /** Show the trials; new columns make the table and the axes anew. */
  async function loadTrials() {
    const trials = await get(`${path}/trials`, {}, signal);
    const names = Object.keys({ ...trials.params, ...trials.figures }).join();
    if (table && names === known) {
      table.data(trials);
      return void shape.data(study, trials);
    }
    known = names;
    table = trialsCard(study, trials);
    shape = space(study, trials, signal, (kept) => table.keep(kept));
    slices.replaceChildren(...shape.slices.children);
    fill(below, shape.parallel, table.node);
  }

  async function load() {
    study = await get(path, {}, signal);
    draw();
    await loadTrials();
  }

  draw();
  loadTrials().catch((error) => !signal.aborted && fill(below, failure(error, again)));
  const soon = settled(800, () => load().catch((error) => !signal.aborted && console.warn(error.message)));
  live.on("refresh", soon, signal);
  live.on(
    "studies",
    ({ studies }) =>
      studies.forEach((line) => {
        if (line.name !== study.name) return;
        Object.assign(study, line);
        top.set(study);
        soon();
      }),
    signal,
  );
}

/** How a study's score is written. */
export const unit = (study) => ({ share: "percent", change: "percent", percent: "percent" })[study.unit] ?? "number";

function topTiles() {
  const made = {
    trials: tile("Trials"),
    best: tile("Best so far"),
    rate: tile("Trials per hour"),
    left: tile("Time left"),
    pruned: tile("Pruned"),
    failed: tile("Failed"),
  };
  const progress = bar("Progress of this study");
  made.trials.node.append(progress.node);
  return {
    node: tileRow(made),
    set(study) {
      progress.set(study.wanted ? study.over / study.wanted : 0);
      made.trials.set(
        whole(study.over),
        study.wanted ? `of ${whole(study.wanted)}, ${whole(study.counts.running ?? 0)} running` : "",
      );
      made.best.set(study.best?.text ?? NOTHING, study.best ? `trial ${study.best.number}` : "");
      made.rate.set(short(study.trials_per_hour), "");
      made.left.set(
        study.status === "running" ? brief(study.seconds_left) : NOTHING,
        study.status === "running" ? "at this rate" : study.status,
      );
      made.pruned.set(whole(study.counts.pruned ?? 0), "stopped early");
      made.failed.set(whole(study.counts.failed ?? 0), "");
    },
  };
}

const FIRST = ["return", "sharpe", "max_drawdown", "episode_return", "turnover", "trades"]; // figures of the test that are shown at once

/** The winner, and what it is worth on the test data. */
function winnerCard(study) {
  const { test } = study;
  if (!study.winner && !test)
    return study.status === "running" ? null : empty("No winner", "No trial came to an end with a score.");
  const told = Object.entries(test?.texts ?? {});
  const pairs = (list) => list.map(([name, text]) => [capital(name.replaceAll("_", " ")), text]);
  const rest = told.filter(([name]) => !FIRST.includes(name));
  const risk = test
    ? [
        ["Deflated Sharpe", figure(test.deflated_sharpe, "percent")],
        ["Probability of overfitting", figure(test.pbo, "percent")],
      ]
    : [];
  return card(
    "Winner",
    {
      about: study.winner ? `trial ${study.winner.number}` : null,
      actions: study.winning_run ? h("a.button", { href: `runs/${part(study.winning_run)}` }, "Open its run") : null,
    },
    h(
      "div.columns",
      h("div.stack", facts((study.facts ?? []).filter(([name]) => !["Status", "Test", "Its run"].includes(name)))),
      test
        ? h(
            "div.stack",
            h("h3", "On the test data"),
            facts([...risk, ...pairs(told.filter(([name]) => FIRST.includes(name)))]),
            h(
              "details",
              h("summary", "All figures and notes"),
              h(
                "div.stack",
                facts(pairs(rest)),
                [...new Set(test.notes ?? [])].map((note) => h("p.small.muted", note)),
              ),
            ),
          )
        : h("p.muted", "The test data have not been looked at yet."),
    ),
  );
}
