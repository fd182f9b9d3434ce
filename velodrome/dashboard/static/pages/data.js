/** The data that runs were trained on. */

import { get, part } from "../core/api.js";
import { fill, h } from "../core/element.js";
import { NOTHING, whole } from "../core/format.js";
import { card, empty, foot, head } from "../parts/basics.js";
import { table } from "../parts/table.js";

export async function show(host, { signal, title }) {
  title("Data");
  const { markets } = await get("api/data", {}, signal);
  fill(
    host,
    head("Data", "What runs were trained on, told apart by its content."),
    markets.length
      ? card(
          "All data",
          {},
          table(
            "Data",
            [
              {
                key: "title",
                name: "Data",
                side: "left",
                by: (each) => each.title,
                show: (each) => h("a", { href: `data/${part(each.id)}` }, each.title),
              },
              {
                key: "symbols",
                name: "Instruments",
                side: "left",
                show: (each) =>
                  Array.isArray(each.symbols) ? each.symbols.join(", ") : each.symbols ? whole(each.symbols) : NOTHING,
              },
              { key: "timeframe", name: "Timeframe", side: "left", show: (each) => each.timeframe ?? NOTHING },
              { key: "env", name: "For", side: "left", by: (each) => each.env, show: (each) => each.env },
              { key: "kind", name: "Kind", side: "left", show: (each) => (each.built_in ? "built in" : "files") },
              { key: "id", name: "Content", side: "left", show: (each) => h("code", each.id.slice(0, 12)) },
              {
                key: "runs",
                name: "Runs",
                by: (each) => each.runs,
                descendingFirst: true,
                show: (each) => whole(each.runs),
              },
              {
                key: "readable",
                name: "Now",
                side: "left",
                show: (each) =>
                  each.readable ? "readable" : h("span.loss", { title: each.problem }, "✕ not readable"),
              },
            ],
            { rows: markets },
          ).node,
        )
      : empty(
          "No data yet",
          "Data appear here once a run was trained on them. To look at price files before:",
          "velodrome data check PATH",
        ),
    foot(),
  );
}
