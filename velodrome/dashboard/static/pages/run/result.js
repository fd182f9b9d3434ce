/** What a run is worth on data: figures beside baselines, equity and drawdown, trades on candles, weights, months. */

import { address, get } from "../../core/api.js";
import { fill, h } from "../../core/element.js";
import { NOTHING, capital, figure, marketTime, percent, whole } from "../../core/format.js";
import { bars, histogram, shares } from "../../charts/bars.js";
import { CandleChart } from "../../charts/candles.js";
import { LineChart } from "../../charts/line.js";
import { StackedChart } from "../../charts/stacked.js";
import { card, change, choices, empty, failure, notesCard, select, warnings } from "../../parts/basics.js";
import { grid } from "../../parts/grid.js";
import { table } from "../../parts/table.js";

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const POINTS = 2000;
const STEEP = 20; // times the money of the beginning
const HALF_A_PAGE = 5; // months beside each other
const STRIPPED = 13; // actions that one strip can show; of more, the most frequent are listed

/** Fill a host with the evaluations of a run, the final one first. */
export async function result(host, run, path, signal) {
  const official = run.official ? officialCard(run.official) : null;
  if (!run.has_folder) {
    const text = "What it came to is above; its curves and trades lay in the folder.";
    return void fill(host, official, empty("The folder of this run is gone", text));
  }
  if (!run.evaluations.length) {
    const text =
      run.status === "running"
        ? "It is judged on data that it never saw when it ends."
        : "Press Evaluate above, or type:";
    return void fill(
      host,
      official,
      empty("Not evaluated yet", text, run.status === "running" ? null : `velodrome eval ${run.id}`),
    );
  }
  const body = h("div.stack");
  const pick =
    run.evaluations.length > 1
      ? select(
          "Evaluation",
          run.evaluations.map((each) => [each.key, `${each.label || each.split}, step ${whole(each.step)}`]),
          run.evaluations[0].key,
          (key) => draw(key).catch((error) => fill(body, failure(error))),
        )
      : null;
  fill(host, official, pick, body);

  async function draw(key) {
    const found = await get(`${path}/evaluation`, { key, points: POINTS }, signal);
    fill(body, parts(found, path, signal));
  }
  await draw("");
}

function parts(found, path, signal) {
  const isBacktest = found.kind === "backtest";
  const hints = [
    found.in_sample ? "This is in sample: it was trained on these data, so the figures flatter it." : null,
    ...(found.warnings ?? []),
  ].filter(Boolean);
  const isWide = new Set((found.months ?? []).map(({ month }) => month.slice(5))).size > HALF_A_PAGE;
  return [
    warnings(hints),
    isBacktest ? equityCard(found, signal) : null,
    isBacktest && found.symbols?.length ? pricesCard(found, path, signal) : null,
    found.weights?.length ? weightsCard(found, signal) : null,
    figuresCard(found),
    h("div.columns", actionsCard(found), isWide ? null : monthsCard(found), episodesCard(found)),
    isWide ? monthsCard(found) : null,
    fallsCard(found),
    found.trades?.total ? tradesCard(found, path) : null,
    notesCard(found.notes),
  ];
}

function equityCard(found, signal) {
  const lines = (curves) =>
    curves
      .filter((curve) => !["low", "high"].includes(curve.kind))
      .map((curve) => ({
        ...curve,
        name: curve.kind === "seed" ? "others" : curve.name,
        label: curve.label ?? curve.name,
        width: curve.kind === "agent" ? 2.4 : curve.kind === "seed" ? 1 : 1.6,
      }));
  const pairs = { zoomed: (from, to) => [equity, drawdown].forEach((chart) => chart.setZoom(from, to, false)) };
  const equity = new LineChart("Equity of the agent and its baselines", {
    x: "market",
    y: "money",
    height: 320,
    signal,
    ...pairs,
  });
  const drawdown = new LineChart("Drawdown of the agent and its baselines", {
    x: "market",
    y: "percent",
    height: 170,
    legend: false,
    signal,
    ...pairs,
  });
  const low = found.equity.find((curve) => curve.kind === "low");
  const high = found.equity.find((curve) => curve.kind === "high");
  equity.data(lines(found.equity), low && high ? { x: low.x, low: low.y, high: high.y } : null);
  drawdown.data(
    lines(found.drawdown).map((line) => ({
      ...line,
      y: line.y.map((value) => (value === null ? null : -Math.abs(value))),
    })),
  );
  // Where one multiplies its money, the others would lie on the ground.
  const begin = found.equity.some((curve) => curve.y.some((value) => value > STEEP * curve.y[0])) ? "log" : "linear";
  equity.logarithmic = begin === "log";
  const scale = choices(
    "Scale",
    [
      ["linear", "Linear"],
      ["log", "Log"],
    ],
    begin,
    (key) => {
      equity.logarithmic = key === "log";
      equity.build();
    },
  );
  return card(
    "Equity",
    {
      actions: scale,
      about: `${found.label || found.split}: ${marketTime(found.first, false)} to ${marketTime(found.last, false)}; drag to zoom, double click for all`,
    },
    equity.node,
    h("h3", "Drawdown"),
    drawdown.node,
  );
}

function pricesCard(found, path, signal) {
  const chart = new CandleChart(
    "Prices with the trades of the agent",
    (asked) => get(`${path}/candles`, { key: found.key, ...asked }, signal),
    { trades: found.trades, span: [found.first, found.last], signal },
  );
  const node = card(
    "Prices and trades",
    { about: "arrow: entry, up for long; circle: exit with its return. Rising candles are hollow" },
    chart.node,
  );
  requestAnimationFrame(() => chart.begin().catch((error) => !signal.aborted && fill(chart.node, failure(error))));
  return node;
}

function weightsCard(found, signal) {
  const chart = new StackedChart("Weights of the portfolio over time", { x: "market", height: 280, signal });
  chart.data(found.weights.map((curve) => ({ ...curve, label: curve.label ?? curve.name, name: "" })));
  return card("Weights", { about: "share of the equity; what is short lies below zero" }, chart.node);
}

/** A figure as the server writes it. */
const told = (row, text, value) =>
  text ??
  (value === null || value === undefined
    ? NOTHING
    : figure(value, { share: "percent", change: "change", ratio: "ratio" }[row.unit] ?? "number"));

function figuresCard(found) {
  const lines = (name, rows) =>
    table(
      name,
      [
        { key: "label", name: "Figure", side: "left", by: (row) => row.label, show: (row) => row.label },
        {
          key: "value",
          name: "Agent",
          by: (row) => row.value,
          show: (row) => h("b.nowrap", told(row, row.text, row.value)),
        },
        { key: "interval", name: "Interval", show: (row) => h("span.muted.nowrap", row.interval || NOTHING) },
        ...found.baselines.map((baseline) => ({
          key: baseline.name,
          name: baseline.label,
          title: baseline.hindsight ? "chosen in hindsight, which nobody had" : undefined,
          by: (row) => row.baselines[baseline.name],
          show: (row) => h("span.nowrap", told(row, row.baseline_texts?.[baseline.name], row.baselines[baseline.name])),
        })),
      ],
      { rows },
    ).node;
  const more = found.rows.filter((row) => row.detail);
  return card(
    "Figures",
    { about: `with ${percent(found.confidence ?? 0.95, 0)} intervals where they can be told` },
    lines(
      "Figures",
      found.rows.filter((row) => !row.detail),
    ),
    more.length ? h("details", h("summary", `${whole(more.length)} more`), lines("More figures", more)) : null,
  );
}

function actionsCard(found) {
  if (!found.actions?.length) return null;
  if (found.actions.length > STRIPPED) {
    const rows = found.actions.filter((action) => action.share > 0).sort((a, b) => b.share - a.share);
    const others = rows.slice(STRIPPED);
    const rest = others.reduce((sum, action) => sum + action.share, 0);
    const listed = rows.slice(0, STRIPPED);
    if (others.length) listed.push({ name: `${whole(others.length)} others`, share: rest });
    const most = Math.max(...listed.map((action) => action.share));
    return card(
      "Actions",
      { about: `${whole(rows.length)} of ${whole(found.actions.length)} were taken; the most frequent first` },
      bars(
        "Share of actions",
        listed.map((action) => [action.name, action.share / most, percent(action.share, 1)]),
      ),
    );
  }
  const strip = shares(
    "Share of actions",
    found.actions.map((action) => action.name),
  );
  strip.set(found.actions.map((action) => action.share));
  return card("Actions", { about: "how often each was taken" }, strip.node);
}

/** Returns by year and month; months are "2020-02". */
function monthsCard(found) {
  if (!found.months?.length) return null;
  const values = new Map(found.months.map((each) => [each.month, each]));
  const years = [...new Set(found.months.map((each) => each.month.slice(0, 4)))];
  const used = MONTHS.map((name, at) => [name, String(at + 1).padStart(2, "0")]).filter(([, at]) =>
    years.some((year) => values.has(`${year}-${at}`)),
  );
  const cell = (year, at) => {
    const month = values.get(`${year}-${at}`);
    return h(
      "td",
      {
        title:
          month && Number.isFinite(month.benchmark)
            ? `${found.benchmark ?? "benchmark"}: ${percent(month.benchmark, 2, true)}`
            : null,
      },
      month ? change(month.agent) : NOTHING,
    );
  };
  return card(
    "Months",
    { about: "return of each" },
    h(
      "div.scroll",
      { tabindex: "0", role: "region", "aria-label": "Returns by month" },
      h(
        "table.heat",
        h(
          "thead",
          h(
            "tr",
            h("th", { scope: "col" }, "Year"),
            used.map(([name]) => h("th", { scope: "col" }, name)),
          ),
        ),
        h(
          "tbody",
          years.map((year) =>
            h(
              "tr",
              h("th", { scope: "row" }, year),
              used.map(([, at]) => cell(year, at)),
            ),
          ),
        ),
      ),
    ),
  );
}

function episodesCard(found) {
  const { episodes } = found;
  if (!episodes?.counts?.length) return null;
  return card(
    "Episodes",
    { about: "how many had which return" },
    histogram("Episodes by their return", episodes.bins, episodes.counts),
  );
}

function fallsCard(found) {
  if (!found.falls?.length) return null;
  const day = (text) => h("span.nowrap", text ? String(text).slice(0, 16) : "not yet");
  return card(
    "Deepest falls",
    { about: "times in UTC" },
    table(
      "Deepest falls",
      [
        { key: "depth", name: "Depth", by: (fall) => fall.depth, show: (fall) => percent(fall.depth, 2) },
        { key: "begin", name: "From", show: (fall) => day(fall.begin) },
        { key: "end", name: "Made up for", show: (fall) => day(fall.end) },
        { key: "bars", name: "Bars", by: (fall) => fall.bars, show: (fall) => whole(fall.bars) },
      ],
      { rows: found.falls.slice(0, 6) },
    ).node,
  );
}

const TRADE_KINDS = {
  entry_time: "market",
  exit_time: "market",
  return: "change",
  profit: "money",
  costs: "money",
  units: "number",
  bars: "whole",
  seed: "whole",
  training_seed: "whole",
};

function tradesCard(found, path) {
  const { columns, total } = found.trades;
  // Where all trades are of one seed, that is no news.
  const isNews = (name) => !name.endsWith("seed") || columns[name].some((value) => value !== columns[name][0]);
  const names = Object.keys(columns).filter((name) => columns[name]?.length && isNews(name));
  const words = (name) => ["symbol", "side", "reason"].includes(name);
  const made = grid(
    "Trades",
    names.map((name) => ({
      key: name,
      name: capital(name.replaceAll("_", " ")),
      width: words(name) ? 84 : name.endsWith("time") ? 138 : 102,
      left: words(name),
      value: (row) => columns[name][row],
      text: (row) => figure(columns[name][row], TRADE_KINDS[name]),
    })),
  );
  made.rows(Array.from({ length: columns[names[0]].length }, (_, at) => at));
  const listed = columns[names[0]].length;
  return card(
    "Trades",
    {
      about:
        listed < total
          ? `the first ${whole(listed)} of ${whole(total)}; times in UTC`
          : `${whole(total)}; times in UTC`,
      actions: h(
        "a.button",
        { href: address(`${path}/trades.csv`, { key: found.key }).href, download: true },
        "Export trades",
      ),
    },
    made.node,
  );
}

/** CAGE-2's official table. */
function officialCard(official) {
  return card(
    capital(official.title),
    { about: official.policy ? `policy: ${official.policy}` : null },
    table(
      official.title,
      official.columns.map((name, at) => ({
        key: String(at),
        name: capital(name),
        side: at === 0 ? "left" : undefined,
        show: (row) => h("span.nowrap", row[at]?.text ?? figure(row[at], "ratio")),
      })),
      { rows: official.rows },
    ).node,
  );
}
