/** One benchmark: its tables as they were measured, and the first speed among them as bars. */

import { get, part } from "../core/api.js";
import { fill, h } from "../core/element.js";
import { capital, figure, moment, short, whole } from "../core/format.js";
import { bars } from "../charts/bars.js";
import { card, command, empty, foot, head, notesCard, warnings } from "../parts/basics.js";
import { table } from "../parts/table.js";

const SHOWN = 24; // bars
const SPEED = /per_second|per second|steps\/s|\/s$/;

export async function show(host, { parts, signal, title }) {
  const found = await get(`api/benchmarks/${part(parts.id)}`, {}, signal);
  title(found.title || found.name);
  const { tables } = found;
  const about = [
    found.machine,
    found.commit && `commit ${found.commit.slice(0, 10)}`,
    found.version && `version ${found.version}`,
    moment(found.created ?? found.written),
  ];
  fill(
    host,
    head(found.title || found.name, about.filter(Boolean).join(" · ")),
    warnings(found.problem ? [found.problem] : []),
    tables.length ? speedCard(tables[0]) : empty("No table in this result", "Its file holds no list of measurements."),
    tables.map((each) =>
      card(
        capital(each.title || "rows"),
        { about: `${whole(each.rows.length)} rows` },
        rowsTable(each),
        (each.lines ?? []).map((line) => h("p.small.muted", line)),
      ),
    ),
    found.command ? card("How it was measured", {}, command(found.command)) : null,
    notesCard(found.notes),
    foot(),
  );
}

/** The name of a column, with its unit unless the name is the unit. */
function headOf({ name, unit }) {
  const words = name.replaceAll("_", " ");
  return capital(unit && !words.includes(unit) ? `${words} (${unit})` : words);
}

function rowsTable({ title, columns, rows }) {
  const isText = (at) => rows.every((row) => row[at] === null || typeof row[at] === "string");
  return table(
    title || "Rows",
    columns.map((column, at) => ({
      key: String(at),
      name: headOf(column),
      side: isText(at) ? "left" : undefined,
      by: (row) => row[at],
      show: (row) => h("span.nowrap", figure(row[at])),
    })),
    { rows },
  ).node;
}

/** The first column of a speed as bars, named by the columns of words and small numbers before it. */
function speedCard({ columns, rows }) {
  const speed = columns.findIndex((column) => SPEED.test(`${column.name} ${column.unit ?? ""}`));
  const most = Math.max(0, ...rows.map((row) => (typeof row[speed] === "number" ? row[speed] : 0)));
  if (speed < 0 || most === 0) return null;
  const names = columns
    .map((_, at) => at)
    .filter(
      (at) =>
        at !== speed &&
        rows.every((row) => typeof row[at] === "string" || (Number.isInteger(row[at]) && row[at] < 1e7)),
    )
    .slice(0, 4);
  return card(
    columns[speed].name.replaceAll("_", " "),
    { about: columns[speed].unit || null },
    bars(
      columns[speed].name,
      rows
        .slice(0, SHOWN)
        .map((row) => [names.map((at) => row[at]).join(" · "), (row[speed] ?? 0) / most, short(row[speed])]),
    ),
  );
}
