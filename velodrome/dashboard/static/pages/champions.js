/** The champions: what was promoted, by which study, since when. */

import { get, part } from "../core/api.js";
import { fill, h, settled } from "../core/element.js";
import { NOTHING, ago, whole } from "../core/format.js";
import * as live from "../core/live.js";
import { card, empty, foot, head } from "../parts/basics.js";
import { table } from "../parts/table.js";

export async function show(host, { signal, title }) {
  title("Champions");
  const body = h("div");
  const load = async () => {
    const { champions } = await get("api/champions", {}, signal);
    fill(
      body,
      champions.length
        ? card(
            "All champions",
            {},
            table(
              "Champions",
              [
                {
                  key: "name",
                  name: "Champion",
                  side: "left",
                  by: (each) => each.name,
                  show: (each) => h("a", { href: `champions/${part(each.name)}` }, each.name),
                },
                { key: "number", name: "Current", by: (each) => each.number, show: (each) => `number ${each.number}` },
                {
                  key: "promotions",
                  name: "Promotions",
                  by: (each) => each.promotions,
                  show: (each) => whole(each.promotions),
                },
                {
                  key: "from",
                  name: "From",
                  side: "left",
                  show: (each) =>
                    each.study
                      ? [h("a", { href: `studies/${part(each.study)}` }, each.study), ` trial ${each.trial}`]
                      : h("a", { href: `runs/${part(each.run)}` }, `run ${each.run}`),
                },
                { key: "paper", name: "Paper loop", side: "left", show: (each) => (each.paper ? "yes" : NOTHING) },
                {
                  key: "since",
                  name: "Since",
                  by: (each) => each.since,
                  show: (each) => h("span.nowrap", ago(each.since)),
                },
              ],
              { rows: champions },
            ).node,
          )
        : empty(
            "No champion yet",
            "A champion is the winner of a study that stood the checks: deflated Sharpe, probability of overfitting, fresh seeds.",
            "velodrome promote STUDY",
          ),
    );
  };
  await load();
  fill(host, head("Champions", "What was promoted; each can be rolled back."), body, foot());
  const soon = settled(500, () => load().catch(() => {}));
  live.on("refresh", soon, signal);
  live.on("happened", ({ kind }) => /promot|roll/.test(kind) && soon(), signal);
}
