/** Up to eight runs laid over each other, and what differs between them. Many more can be drawn by their address. */

import { address, get, isLeaving, part } from "../core/api.js";
import { fill, freshId, h, settled } from "../core/element.js";
import { NOTHING, counted, figure } from "../core/format.js";
import * as live from "../core/live.js";
import { badge, card, empty, foot, head, heldOut, resultText, warnings } from "../parts/basics.js";
import { Curves, metricCard } from "../parts/curves.js";
import { complain } from "../parts/notices.js";
import { table } from "../parts/table.js";
import { chartGroups } from "./run/learning.js";

const FIRST = ["return", "sharpe", "max_drawdown", "turnover", "costs", "win_rate", "trades", "episode_return"]; // figures that are asked for most
const MOST = 8; // that are compared figure by figure; curves of more can be drawn

export async function show(host, { asked, signal, go, title }) {
  title("Compare");
  const ids = (asked.get("runs") ?? "").split(",").filter(Boolean);
  const picker = await runPicker(ids, go, signal);
  if (!ids.length)
    return void fill(
      host,
      head("Compare", "Learning curves of several runs in one picture, and what they were told differently."),
      picker,
      empty(
        "Choose two runs or more",
        "Tick them in the list of runs and press Compare, or search for them above.",
        "velodrome runs compare RUN RUN",
      ),
      foot(),
    );
  const found = await get(
    "api/compare",
    { runs: ids.slice(0, Math.max(MOST, Math.min(ids.length, 64))).join(",") },
    signal,
  );
  const runs =
    ids.length > found.runs.length
      ? ids.map((id) => found.runs.find((run) => run.id === id) ?? { id, name: id })
      : found.runs;
  const named = distinct(runs);
  const curves = new Curves(named, signal, ids.length > 32 ? 500 : 1000);
  const names = asked.get("names")?.split(",") ?? Object.keys(found.metrics);
  const groups = chartGroups(names).filter(([name]) => !["Phases", "Actions"].includes(name));
  await curves.load(groups.flatMap(([, , list]) => list.flatMap(([, , of]) => of)));
  const cards = groups.map(([name, about, list]) =>
    metricCard(name, curves, separate(list), { about, signal, height: 300 }),
  );
  fill(
    host,
    head(
      "Compare",
      counted(named.length, "run"),
      h(
        "a.button",
        { href: address("api/metrics.csv", { runs: ids.join(",") }).href, download: true },
        "Export metrics",
      ),
    ),
    picker,
    warnings(
      found.same_data
        ? []
        : ["These runs were not trained on the same data: their figures cannot be set against each other."],
    ),
    chosenCard(named, ids, go),
    cards.length
      ? h(
          "div.columns",
          cards.map((each) => each.node),
        )
      : empty("Nothing was measured yet", "The curves appear after the first updates."),
    found.runs.length <= MOST ? figuresCard(found, named) : null,
    differencesCard(found, named),
    foot(),
  );
  const grow = settled(900, () =>
    curves
      .grow()
      .then(() => cards.forEach((each) => each.draw()))
      .catch((error) => !signal.aborted && complain(error)),
  );
  live.on("runs", ({ runs: changed }) => changed.some((run) => ids.includes(run.id)) && grow(), signal);
}

/** Splits of an evaluation are figures of their own here: the lines are runs. */
const separate = (list) =>
  list.flatMap(([key, text, names, how]) =>
    names.map((name) => [
      names.length > 1 ? name : key,
      names.length > 1 ? `${text} (${how.labels?.[name] ?? name})` : text,
      [name],
      { kind: how.kind },
    ]),
  );

/** Runs with names that differ from each other. */
function distinct(runs) {
  const counts = new Map();
  for (const run of runs) counts.set(run.name, (counts.get(run.name) ?? 0) + 1);
  return runs.map((run) => ({
    ...run,
    name: counts.get(run.name) > 1 ? `${run.name} (${run.id.slice(0, 6)})` : run.name,
  }));
}

function chosenCard(runs, ids, go) {
  return card(
    "Runs",
    {},
    table(
      "Runs compared",
      [
        {
          key: "name",
          name: "Run",
          side: "left",
          show: (run) => [h("a", { href: `runs/${part(run.id)}` }, run.name), heldOut(run.held_out)],
        },
        { key: "status", name: "Status", side: "left", show: (run) => (run.status ? badge(run.status) : NOTHING) },
        {
          key: "env",
          name: "Environment",
          side: "left",
          show: (run) => (run.env ? `${run.env} · ${run.algorithm}` : NOTHING),
        },
        {
          key: "result",
          name: "Out of sample",
          by: (run) => run.result?.value,
          show: (run) => resultText(run.result)[0],
        },
        { key: "baseline", name: "Baseline", show: (run) => resultText(run.result)[1] },
        {
          key: "remove",
          name: h("span.unseen", "Remove"),
          show: (run) =>
            h(
              "button.quiet",
              {
                type: "button",
                "aria-label": `Take ${run.name} out`,
                on: {
                  click: () =>
                    go(
                      `compare?runs=${ids
                        .filter((id) => id !== run.id)
                        .map(part)
                        .join(",")}`,
                    ),
                },
              },
              "Remove",
            ),
        },
      ],
      { rows: runs.slice(0, 200) },
    ).node,
  );
}

function figuresCard(found, runs) {
  const rows = Object.entries(found.evaluations).map(([name, values]) => ({ name, values }));
  if (!rows.length) return null;
  const rank = (name) => FIRST.findIndex((each) => name.endsWith(`/${each}`)) + 1 || FIRST.length + 1;
  rows.sort((a, b) => rank(a.name) - rank(b.name));
  return card(
    "Results",
    { about: "on the split that each names" },
    table(
      "Results",
      [
        {
          key: "name",
          name: "Figure",
          side: "left",
          by: (row) => row.name,
          show: (row) => row.name.replaceAll("_", " ").replace("/", ": "),
        },
        ...runs.map((run, at) => ({
          key: run.id,
          name: run.name,
          show: (row) => (row.values[at] ? h("span.nowrap", row.values[at].text) : NOTHING),
        })),
      ],
      { rows },
    ).node,
  );
}

function differencesCard(found, runs) {
  if (!found.differences.length) return card("Settings", {}, h("p.muted", "All were told the same."));
  return card(
    "Settings that differ",
    {},
    table(
      "Settings that differ",
      [
        { key: "key", name: "Setting", side: "left", by: (row) => row.key, show: (row) => h("code", row.key) },
        ...runs.slice(0, found.runs.length).map((run, at) => ({
          key: run.id,
          name: run.name,
          show: (row) => h("span.anywhere", row.values[at] === null ? "none" : figure(row.values[at])),
        })),
      ],
      { rows: found.differences },
    ).node,
  );
}

/** A search for runs to add. */
async function runPicker(ids, go, signal) {
  const id = freshId("add");
  const list = h("datalist", { id: `${id}-list` });
  const known = new Map();
  const input = h("input", { id, type: "search", list: `${id}-list`, placeholder: "name or id", autocomplete: "off" });
  const search = async () => {
    const found = await get("api/runs", { q: input.value.trim(), limit: 20 }, signal);
    known.clear();
    for (const run of found.runs) known.set(`${run.name} (${run.id})`, run.id);
    fill(
      list,
      [...known.keys()].map((text) => h("option", { value: text })),
    );
    return found.runs;
  };
  const look = settled(200, () => search().catch(() => {}));
  /** The run that is meant: one of the list, the only one that fits, or the only one of that very name. */
  const meant = async () => {
    if (known.has(input.value)) return known.get(input.value);
    const wanted = input.value.trim();
    const fitting = await search(); // what is known may be of what was typed before
    const exact = fitting.filter((run) => [run.name, run.id].includes(wanted));
    const chosen = exact.length === 1 ? exact : fitting;
    if (chosen.length === 1) return chosen[0].id;
    const several = `several runs fit ${wanted || "that"}: choose one of the list`;
    throw new Error(fitting.length ? several : `no run has ${wanted} in its name or id`);
  };
  const add = async () => {
    try {
      const chosen = await meant();
      if (ids.includes(chosen)) throw new Error("that run is here already");
      go(`compare?runs=${[...ids, chosen].map(part).join(",")}`);
    } catch (error) {
      if (!isLeaving(error) && !signal.aborted) complain(error);
    }
  };
  input.addEventListener("input", () => (known.has(input.value) ? add() : look()));
  input.addEventListener("focus", look);
  const form = h(
    "form.filters",
    {
      on: {
        submit: (event) => {
          event.preventDefault();
          add();
        },
      },
    },
    h("div.field", h("label", { for: id }, `Add a run (up to ${MOST})`), input),
    list,
    h("button", { type: "submit", disabled: ids.length >= MOST }, "Add"),
  );
  return form;
}
