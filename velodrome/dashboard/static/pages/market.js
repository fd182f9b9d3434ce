/** One set of data: what its check found, its prices, its gaps, its splits. */

import { get, part } from "../core/api.js";
import { fill, h } from "../core/element.js";
import { counted, duration, marketTime, percent, whole } from "../core/format.js";
import { CandleChart } from "../charts/candles.js";
import { card, facts, failure, foot, head, warnings } from "../parts/basics.js";
import { table } from "../parts/table.js";

const SIGNS = { error: ["✕", "loss"], warning: ["!", "loss"], note: ["·", "muted"] };

export async function show(host, { parts, signal, title }) {
  const path = `api/data/${part(parts.id)}`;
  const market = await get(path, {}, signal);
  title(market.title);
  const prices = new CandleChart("Prices", (asked) => get(`${path}/candles`, asked, signal), { signal });
  const gaps = market.instruments.flatMap((each) => each.gaps.map((gap) => ({ ...gap, symbol: each.symbol })));
  fill(
    host,
    head(
      market.title,
      `${whole(market.bars)} bars · ${market.timeframe ?? ""} · ${counted(market.symbols.length, "instrument")} · ${counted(market.runs, "run")}`,
      market.latest_run ? h("a.button", { href: `runs/${part(market.latest_run)}` }, "Latest run on it") : null,
    ),
    warnings(market.problem ? [market.problem] : []),
    h(
      "div.columns",
      card(
        "What the check found",
        {},
        market.checks.length
          ? h(
              "ul.checks",
              market.checks.map((check) => {
                const [sign, look] = SIGNS[check.level] ?? SIGNS.note;
                return h(
                  "li",
                  h("span", { class: look, "aria-hidden": "true" }, sign),
                  h(
                    "span",
                    h("span.unseen", `${check.level}: `),
                    check.symbol ? h("b", `${check.symbol}: `) : null,
                    check.text,
                    check.where ? h("span.muted", ` ${check.where}`) : null,
                    check.advice ? h("span.muted", ` ${check.advice}`) : null,
                    check.count > 1 ? h("span.muted", ` (${whole(check.count)})`) : null,
                  ),
                );
              }),
            )
          : h("p", h("span.gain", { "aria-hidden": "true" }, "✓ "), market.verdict || "Nothing to complain about."),
        market.notes?.length
          ? h(
              "ul.plain",
              market.notes.map((note) => h("li", note)),
            )
          : null,
      ),
      card(
        "Splits",
        { about: "the test part is looked at once" },
        market.splits?.length
          ? facts(
              market.splits.map((split) => [
                split.name,
                split.share !== undefined
                  ? percent(split.share, 0)
                  : `${marketTime(split.from, false)} to ${marketTime(split.to, false)}`,
              ]),
            )
          : h("p.muted", "No splits are known."),
      ),
    ),
    card("Prices", {}, prices.node),
    card(
      "Gaps",
      { about: gaps.length ? `${whole(gaps.length)} times bars are missing` : null },
      gaps.length
        ? table(
            "Gaps",
            [
              { key: "symbol", name: "Instrument", side: "left", by: (gap) => gap.symbol, show: (gap) => gap.symbol },
              {
                key: "from",
                name: "From (UTC)",
                by: (gap) => gap.from,
                show: (gap) => h("span.nowrap", marketTime(gap.from)),
              },
              { key: "to", name: "To (UTC)", by: (gap) => gap.to, show: (gap) => h("span.nowrap", marketTime(gap.to)) },
              {
                key: "length",
                name: "Length",
                by: (gap) => gap.to - gap.from,
                descendingFirst: true,
                show: (gap) => h("span.nowrap", duration(gap.to - gap.from)),
              },
              {
                key: "bars",
                name: "Bars missing",
                by: (gap) => gap.bars,
                descendingFirst: true,
                show: (gap) => whole(gap.bars),
              },
            ],
            { rows: gaps.slice(0, 500) },
          ).node
        : h("p.muted", "None: every bar follows the one before it."),
    ),
    card(
      "Instruments",
      {},
      table(
        "Instruments",
        [
          { key: "symbol", name: "Instrument", side: "left", by: (each) => each.symbol, show: (each) => each.symbol },
          { key: "bars", name: "Bars", by: (each) => each.bars, show: (each) => whole(each.bars) },
          {
            key: "missing",
            name: "Missing",
            by: (each) => each.missing,
            descendingFirst: true,
            show: (each) => whole(each.missing),
          },
          {
            key: "first",
            name: "From",
            by: (each) => each.first,
            show: (each) => h("span.nowrap", marketTime(each.first)),
          },
          { key: "last", name: "To", by: (each) => each.last, show: (each) => h("span.nowrap", marketTime(each.last)) },
        ],
        { rows: market.instruments },
      ).node,
    ),
    foot(),
  );
  if (market.readable)
    requestAnimationFrame(() => prices.begin().catch((error) => !signal.aborted && fill(prices.node, failure(error))));
  else fill(prices.node, h("p.muted", "The prices cannot be read now."));
}
