/** The trials of a study as a table: thousands of rows, hundreds of columns, searched and filtered in the browser. */

import { part } from "../../core/api.js";
import { fill, freshId, h, settled, write } from "../../core/element.js";
import { NOTHING, ago, duration, figure, number, whole } from "../../core/format.js";
import { card, choices, facts } from "../../parts/basics.js";
import { grid } from "../../parts/grid.js";

const COMPARE = /^\s*([\w./-]+)\s*(<=|>=|=|<|>)\s*(.+?)\s*$/;

/** What a reader types: words, and conditions such as "ppo.gamma > 0.99"; every part, parted by commas, has to hold. */
export function condition(text, columns) {
  const tests = text
    .split(",")
    .map((piece) => piece.trim())
    .filter(Boolean)
    .map((piece) => {
      const found = piece.match(COMPARE);
      const column = found && columns.find((each) => each.key === found[1] || each.name === found[1]);
      if (column) {
        const wanted = Number(found[3]);
        const byNumber = {
          "<": (a) => a < wanted,
          ">": (a) => a > wanted,
          "<=": (a) => a <= wanted,
          ">=": (a) => a >= wanted,
          "=": (a) => a === wanted,
        };
        if (Number.isNaN(wanted)) return (row) => found[2] === "=" && String(column.value(row)) === found[3];
        return (row) => typeof column.value(row) === "number" && byNumber[found[2]](column.value(row));
      }
      const words = piece.toLowerCase();
      return (row) => columns.some((each) => each.text(row).toLowerCase().includes(words));
    });
  return (row) => tests.every((test) => test(row));
}

export function trialsCard(study, first) {
  let trials = first;
  let status = "";
  let kept = null;
  const id = freshId("search");
  const count = h("p.muted.small", { role: "status" });
  const about = h("div");
  const columns = columnsOf(() => trials, study);
  const made = grid("Trials", columns, { sort: "value", descending: true, open: (row) => describe(row) });
  const search = h("input.wide", {
    id,
    type: "search",
    placeholder: "words, or ppo.gamma > 0.99, value > 0",
    on: { input: settled(150, filter) },
  });
  const statuses = h("div.field");
  const node = card(
    "Trials",
    { about: "sort by a heading; conditions are parted by commas" },
    h("div.filters", h("div.field", h("label", { for: id }, "Search and filter"), search), statuses),
    count,
    made.node,
    about,
  );

  function filter() {
    const fits = condition(search.value, columns);
    const rows = [];
    for (let row = 0; row < trials.number.length; row += 1)
      if ((!status || trials.status[row] === status) && (!kept || kept.has(row)) && fits(row)) rows.push(row);
    made.rows(rows);
    write(
      count,
      `${whole(rows.length)} of ${whole(trials.number.length)} trials${kept ? ", those within the brushes" : ""}, ${columns.length} columns`,
    );
  }

  function drawStatuses() {
    const counts = new Map();
    for (const each of trials.status) counts.set(each, (counts.get(each) ?? 0) + 1);
    fill(
      statuses,
      h("span.label", "Status"),
      choices(
        "Status",
        [["", "All"], ...[...counts].map(([key, number_]) => [key, `${key} ${whole(number_)}`])],
        status,
        (key) => {
          status = key;
          filter();
        },
      ),
    );
  }

  /** What a trial was told and what came of it. */
  function describe(row) {
    const runs = trials.runs?.[row] ?? [];
    fill(
      about,
      h(
        "div.columns",
        h(
          "div.stack",
          h("h3", `Trial ${trials.number[row]}`),
          facts([
            ["Status", trials.status[row]],
            ["Score", trials.text[row] ?? NOTHING],
            ["Why it ended", trials.reason?.[row]],
            ["Training time", duration(trials.cost[row])],
            [
              "Runs",
              runs.length ? runs.map((run, at) => [at ? ", " : "", h("a", { href: `runs/${part(run)}` }, run)]) : null,
            ],
          ]),
        ),
        facts(
          Object.entries(trials.params)
            .filter(([, values]) => values[row] !== null)
            .slice(0, 40)
            .map(([key, values]) => [key, figure(values[row])]),
        ),
      ),
    );
  }

  drawStatuses();
  filter();
  return {
    node,
    data(next) {
      trials = next;
      drawStatuses();
      filter();
    },
    /** Show only these rows, or all. */
    keep(rows) {
      kept = rows === null ? null : new Set(rows);
      filter();
    },
    /** Show a trial by its number. */
    show(wanted) {
      const row = trials.number.indexOf(wanted);
      if (row < 0) return;
      describe(row);
      about.scrollIntoView({ block: "nearest" });
    },
  };
}

function columnsOf(trials, study) {
  const plain = (key, name, width, text, more = {}) => ({
    key,
    name,
    width,
    text: (row) => text(trials()[key]?.[row], row),
    value: (row) => trials()[key]?.[row] ?? null,
    ...more,
  });
  const fixedOnes = [
    plain("number", "Trial", 70, (value) => String(value), {
      link: (row) => (trials().runs?.[row]?.[0] ? `runs/${part(trials().runs[row][0])}` : null),
    }),
    plain("status", "Status", 100, (value) => String(value), { left: true }),
    plain("value", `Score (${study.score})`, 150, (value, row) => trials().text?.[row] ?? number(value)),
    plain("fresh", "Fresh seeds", 110, (value) => (value === null || value === undefined ? NOTHING : number(value))),
    plain("cost", "Training time", 120, (value) => duration(value)),
    plain("seeds", "Seeds", 70, (value) => String(value ?? NOTHING)),
  ];
  const more = (group, width) =>
    Object.keys(trials()[group] ?? {}).map((key) => ({
      key,
      name: key,
      width: Math.max(width, Math.min(220, key.length * 7.5 + 34)),
      value: (row) => trials()[group][key]?.[row] ?? null,
      text: (row) => figure(trials()[group][key]?.[row]),
    }));
  return [
    ...fixedOnes,
    ...more("params", 110),
    ...more("figures", 110),
    plain("reason", "Why it ended", 260, (value) => value || "", { left: true }),
    plain("updated", "Last change", 120, (value) => ago(value)),
  ];
}
