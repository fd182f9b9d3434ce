/** The stored results of `bench`, by machine and commit. */

import { get, part } from "../core/api.js";
import { fill, h } from "../core/element.js";
import { moment, whole } from "../core/format.js";
import { card, empty, foot, head } from "../parts/basics.js";
import { table } from "../parts/table.js";

export async function show(host, { signal, title }) {
  title("Benchmarks");
  const { benchmarks } = await get("api/benchmarks", {}, signal);
  const machines = [...new Set(benchmarks.map((each) => each.machine))].sort((a, b) => Number(!a) - Number(!b));
  fill(
    host,
    head("Benchmarks", "What was measured, on which machine, at which commit."),
    benchmarks.length
      ? machines.map((machine) =>
          card(
            machine || "Machine not told",
            {},
            table(
              `Benchmarks on ${machine}`,
              [
                {
                  key: "title",
                  name: "Benchmark",
                  side: "left",
                  by: (each) => each.title,
                  show: (each) => h("a", { href: `benchmarks/${part(each.id)}` }, each.title || each.name),
                },
                {
                  key: "commit",
                  name: "Commit",
                  side: "left",
                  show: (each) => (each.commit ? h("code", each.commit.slice(0, 10)) : ""),
                },
                { key: "rows", name: "Rows", show: (each) => whole(each.rows) },
                {
                  key: "created",
                  name: "Measured",
                  by: (each) => each.created ?? each.written,
                  descendingFirst: true,
                  show: (each) => h("span.nowrap", moment(each.created ?? each.written)),
                },
              ],
              { rows: benchmarks.filter((each) => each.machine === machine), sort: "created", descending: true },
            ).node,
          ),
        )
      : empty(
          "No benchmark yet",
          "A benchmark measures this machine, beside other libraries if you like, and keeps its result.",
          "velodrome bench step",
        ),
    foot(),
  );
}
