/**
 * Prices as candles with the trades on them, and a second pane in another timeframe that follows the first.
 * The server gives as many candles as fit; when a reader zooms in, finer ones are asked for.
 */

import { isLeaving } from "../core/api.js";
import { fill, h, settled } from "../core/element.js";
import { figure, marketTime, number, percent } from "../core/format.js";
import { colour, onTheme } from "../core/theme.js";
import {
  CandlestickSeries,
  createChart,
  createSeriesMarkers,
} from "../vendor/lightweight-charts/lightweight-charts.js";
import { choices, select } from "../parts/basics.js";
import { complain } from "../parts/notices.js";

const POINTS = 1500;
const DENSEST = 2.5; // candles for each px of a pane, so that all of them are in sight
const MARKED = 160; // trades in sight up to which each is marked; more would hide the candles
const FIRST_TRADES = 40; // that are in sight at first
const WORDED = 40; // trades in sight up to which each tells its profit
const COARSE = 110; // candles in sight under which finer ones are asked for
const DAY = 86400;
const RANGES = [
  ["1 y", 365 * DAY],
  ["3 mo", 91 * DAY],
  ["1 mo", 30 * DAY],
  ["1 w", 7 * DAY],
  ["1 d", DAY],
];

function look() {
  return {
    layout: { background: { color: colour("card") }, textColor: colour("muted"), fontSize: 12, attributionLogo: false },
    grid: { vertLines: { color: colour("grid") }, horzLines: { color: colour("grid") } },
    rightPriceScale: { borderColor: colour("border"), entireTextOnly: true },
    timeScale: { borderColor: colour("border"), timeVisible: true, secondsVisible: false, minBarSpacing: 0.1 },
    crosshair: { mode: 0 },
  };
}

/** Rising candles are hollow, falling ones filled: told apart without colour. */
function candleLook() {
  return {
    upColor: colour("card"),
    downColor: colour("loss"),
    borderUpColor: colour("gain"),
    borderDownColor: colour("loss"),
    wickUpColor: colour("gain"),
    wickDownColor: colour("loss"),
    priceLineVisible: false, // the last price is no news in what is over, and the line would cut through the candles
    lastValueVisible: false,
  };
}

class Pane {
  constructor(name, className, ask) {
    this.host = h("div", {
      class: className,
      tabindex: "0",
      role: "application",
      "aria-roledescription": "chart",
      "aria-label": `${name}. Arrow keys move, plus and minus zoom, Escape shows all.`,
    });
    this.ask = ask;
    this.loaded = null;
    this.timeframe = "";
  }

  open() {
    this.chart = createChart(this.host, { autoSize: true, ...look() });
    this.series = this.chart.addSeries(CandlestickSeries, candleLook());
    this.marks = createSeriesMarkers(this.series, []);
  }

  async load(asked) {
    const points = Math.min(POINTS, Math.max(2 * COARSE, Math.round(DENSEST * this.host.clientWidth)));
    const found = await this.ask({ timeframe: this.timeframe, points, ...asked });
    this.loaded = found;
    const precision = decimals(found.close);
    this.series.applyOptions({ priceFormat: { type: "price", precision, minMove: 10 ** -precision } });
    this.series.setData(
      found.time
        .map((time, at) => ({
          time,
          open: found.open[at],
          high: found.high[at],
          low: found.low[at],
          close: found.close[at],
        }))
        .filter(({ open }) => open !== null),
    );
    return found;
  }

  recolour() {
    this.chart.applyOptions(look());
    this.series.applyOptions(candleLook());
  }

  /** From and to in seconds of what is in sight. */
  sight() {
    const range = this.chart.timeScale().getVisibleRange();
    return range ? [range.from, range.to] : null;
  }

  see(from, to) {
    const times = this.loaded?.time ?? [];
    if (times.length < 2 || to < times[0] || from > times[times.length - 1]) return;
    this.chart
      .timeScale()
      .setVisibleRange({ from: Math.max(from, times[0]), to: Math.min(to, times[times.length - 1]) });
  }
}

export class CandleChart {
  /**
   * @param {string} name
   * @param {(asked: object) => Promise<any>} ask for candles, as `api/…/candles` answers
   * @param {{trades?: object | null, second?: boolean, signal?: AbortSignal, span?: number[] | null}} options
   *   span: from and to in seconds, of what is shown at all
   */
  constructor(name, ask, { trades = null, second = true, signal = null, span = null } = {}) {
    this.trades = trades;
    this.span = span;
    this.symbol = "";
    const asking = (asked) => ask({ symbol: this.symbol, ...asked });
    this.main = new Pane(name, "candles", asking);
    this.second = second ? new Pane(`${name}, another timeframe`, "candles second", asking) : null;
    this.controls = h("div.filters");
    this.readout = h("div.candle-read", { "aria-hidden": "true" });
    this.node = h("div.stack", this.controls, this.readout, this.main.host, this.second?.host);
    this.follow = settled(180, () => this.moved());
    const forget = onTheme(() => {
      for (const pane of [this.main, this.second]) pane?.chart && pane.recolour();
      if (this.main.chart) this.mark();
    });
    signal?.addEventListener("abort", () => {
      forget();
      this.main.chart?.remove();
      this.second?.chart?.remove();
      this.main.chart = null;
    });
    this.signal = signal;
  }

  /** Draw it, once it is on the page. */
  async begin() {
    for (const pane of [this.main, this.second]) pane?.open();
    const first = this.beginning();
    const found = await this.main.load(first ? widened(first, 3) : this.all());
    this.symbol = found.symbol;
    this.whole = this.span ?? [found.first, found.last];
    if (this.second) {
      // The pane below shows the larger picture: some timeframes above the one of the pane above.
      const at = found.timeframes.indexOf(found.timeframe);
      this.second.timeframe = found.timeframes[Math.min(found.timeframes.length - 1, at + 1)] ?? found.timeframe;
      await this.second.load(first ? widened(first, 8) : this.all());
    }
    this.drawControls(found);
    this.main.chart.timeScale().fitContent();
    this.second?.chart.timeScale().fitContent();
    if (first) for (const pane of [this.main, this.second]) pane?.see(...first);
    this.mark();
    this.main.chart.timeScale().subscribeVisibleTimeRangeChange(() => {
      const sight = this.main.sight();
      if (sight && this.second && !this.isBusy) this.second.see(...sight);
      this.follow();
    });
    this.main.chart.subscribeCrosshairMove((event) => this.read(event));
    for (const pane of [this.main, this.second]) pane?.host.addEventListener("keydown", (event) => this.keys(event));
    this.read({});
    this.follow(); // the charts know what is in sight a moment later
  }

  all() {
    return this.span ? { from: this.span[0], to: this.span[1] } : {};
  }

  /** From and to of the first trades, if there are too many to show them all. */
  beginning() {
    const columns = this.trades?.columns;
    if (!columns || columns.entry_time.length <= MARKED) return null;
    return [
      this.span?.[0] ?? columns.entry_time[0],
      columns.exit_time[FIRST_TRADES] ?? columns.entry_time[FIRST_TRADES],
    ];
  }

  drawControls(found) {
    const symbols = found.symbols ?? [];
    const span = this.whole[1] - this.whole[0];
    const ranges = [
      ["", "All"],
      ...RANGES.filter(([, seconds]) => seconds < span * 0.9).map(([text, seconds]) => [String(seconds), text]),
    ];
    fill(
      this.controls,
      symbols.length > 1
        ? select(
            "Instrument",
            symbols.map((each) => [each, each]),
            this.symbol,
            (key) => this.instrument(key),
          )
        : null,
      select("Timeframe", [["", "as it fits"], ...found.timeframes.map((each) => [each, each])], "", (key) =>
        this.frame(this.main, key),
      ),
      this.second
        ? select(
            "Second pane",
            found.timeframes.map((each) => [each, each]),
            this.second.timeframe,
            (key) => this.frame(this.second, key),
          )
        : null,
      h(
        "div.field",
        h("span.label", "Range"),
        choices("Range", ranges, this.beginning() ? null : "", (key) => this.range(key)),
      ),
    );
  }

  async instrument(symbol) {
    this.symbol = symbol;
    await this.attempt(async () => {
      const found = await this.main.load(this.all());
      this.whole = this.span ?? [found.first, found.last];
      await this.second?.load(this.all());
      this.main.chart.timeScale().fitContent();
      this.mark();
    });
  }

  async frame(pane, timeframe) {
    pane.timeframe = timeframe;
    const sight = this.main.sight();
    await this.attempt(async () => {
      await pane.load(sight ? { from: sight[0] - (sight[1] - sight[0]), to: sight[1] + (sight[1] - sight[0]) } : {});
      this.mark();
      if (sight) pane.see(...sight);
    });
  }

  async range(seconds) {
    const width = Number(seconds);
    const start = Math.min(this.main.sight()?.[0] ?? this.whole[0], this.whole[1] - width);
    const wanted = seconds === "" ? this.whole : [start, start + width];
    await this.attempt(async () => {
      await this.main.load(seconds === "" ? this.all() : widened(wanted, 2));
      await this.second?.load(seconds === "" ? this.all() : widened(wanted, 4));
      for (const pane of [this.main, this.second]) {
        if (seconds === "") pane?.chart.timeScale().fitContent();
        else pane?.see(...wanted);
      }
      this.mark();
    });
  }

  /** The sight has moved: ask for what is missing, or for finer candles. */
  async moved() {
    if (this.isBusy || !this.main.chart) return;
    const sight = this.main.sight();
    const loaded = this.main.loaded;
    if (!sight || !loaded?.time.length) return;
    this.mark();
    const [from, to] = sight;
    const width = to - from;
    const logical = this.main.chart.timeScale().getVisibleLogicalRange();
    const candles = logical ? logical.to - logical.from : loaded.time.length;
    const [first, last] = [loaded.time[0], loaded.time[loaded.time.length - 1]];
    const isFine = loaded.timeframe === loaded.native || this.main.timeframe !== "";
    const hasMore =
      (logical?.from < 0 && first > this.whole[0]) || (logical?.to > loaded.time.length && last < this.whole[1]);
    if ((candles >= COARSE || isFine) && !hasMore) return;
    await this.attempt(async () => {
      await this.main.load({ from: from - width * (hasMore ? 3 : 1), to: to + width * (hasMore ? 3 : 1) });
      this.mark();
      this.main.see(from, to);
    });
  }

  async attempt(work) {
    this.isBusy = true;
    try {
      await work();
    } catch (error) {
      if (!isLeaving(error) && !this.signal?.aborted) complain(error);
    } finally {
      setTimeout(() => (this.isBusy = false), 120); // the charts tell of their own moves a moment later
    }
  }

  /** Mark the trades of this instrument within what is loaded; few of them tell their profit, too. */
  mark() {
    const { trades } = this;
    const times = this.main.loaded?.time ?? [];
    if (!trades || !times.length) return;
    const sight = this.main.sight() ?? [times[0], times[times.length - 1]];
    const { columns } = trades;
    const inside = [];
    let inSight = 0;
    for (let at = 0; at < columns.entry_time.length; at += 1) {
      if (columns.symbol && columns.symbol[at] !== this.symbol) continue;
      if (columns.exit_time[at] < times[0] || columns.entry_time[at] > times[times.length - 1]) continue;
      inside.push(at);
      if (columns.exit_time[at] >= sight[0] && columns.entry_time[at] <= sight[1]) inSight += 1;
    }
    const isWorded = inSight <= WORDED;
    const marks = [];
    this.hiddenTrades = inSight > MARKED ? inSight : 0;
    for (const at of this.hiddenTrades ? [] : inside) {
      if (columns.exit_time[at] < sight[0] || columns.entry_time[at] > sight[1]) continue;
      const isLong = columns.side[at] !== "short";
      const gained = columns.return?.[at] ?? columns.profit?.[at];
      marks.push({
        time: columns.entry_time[at],
        position: isLong ? "belowBar" : "aboveBar",
        shape: isLong ? "arrowUp" : "arrowDown",
        color: colour("agent"),
      });
      if (columns.exit_time[at] === null) continue;
      marks.push({
        time: columns.exit_time[at],
        position: isLong ? "aboveBar" : "belowBar",
        shape: "circle",
        color: colour(gained >= 0 ? "gain" : "loss"),
        text: isWorded ? (columns.return ? percent(gained, 1, true) : number(gained)) : undefined,
      });
    }
    this.main.marks.setMarkers(marks.filter(({ time }) => time !== null).sort((a, b) => a.time - b.time));
  }

  read(event) {
    const loaded = this.main.loaded;
    if (!loaded?.time.length) return;
    const candle = event.seriesData?.get(this.main.series);
    const last = loaded.time.length - 1;
    const shown = candle ?? {
      time: loaded.time[last],
      open: loaded.open[last],
      high: loaded.high[last],
      low: loaded.low[last],
      close: loaded.close[last],
    };
    const pair = (name, text) => h("span", `${name} `, h("b", text));
    fill(
      this.readout,
      h(
        "span",
        h("b", this.symbol),
        ` ${loaded.timeframe}${loaded.coarsened ? " (finer when you zoom in)" : ""}${this.hiddenTrades ? `; ${this.hiddenTrades} trades in sight, marked when you zoom in` : ""}`,
      ),
      pair("UTC", marketTime(shown.time)),
      pair("Open", number(shown.open, 6)),
      pair("High", number(shown.high, 6)),
      pair("Low", number(shown.low, 6)),
      pair("Close", number(shown.close, 6)),
      candle && this.tradeAt(shown.time),
    );
    if (this.second && event.time !== undefined && candle)
      this.second.chart.setCrosshairPosition(
        candle.close,
        nearestTime(this.second.loaded.time, event.time),
        this.second.series,
      );
    else this.second?.chart.clearCrosshairPosition();
  }

  tradeAt(time) {
    const columns = this.trades?.columns;
    if (!columns) return null;
    const at = columns.entry_time.findIndex(
      (entry, place) =>
        entry <= time &&
        (columns.exit_time[place] ?? Infinity) >= time &&
        (!columns.symbol || columns.symbol[place] === this.symbol),
    );
    if (at < 0) return h("span", "no position");
    return h(
      "span",
      `${columns.side[at]} since ${marketTime(columns.entry_time[at])}, in the end `,
      h("b", figure(columns.return?.[at], "change")),
    );
  }

  keys(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const scale = this.main.chart.timeScale();
    const range = scale.getVisibleLogicalRange();
    if (!range) return;
    const width = range.to - range.from;
    const move = {
      ArrowLeft: [-0.1, -0.1],
      ArrowRight: [0.1, 0.1],
      "+": [0.15, -0.15],
      "=": [0.15, -0.15],
      "-": [-0.2, 0.2],
    }[event.key];
    if (move) scale.setVisibleLogicalRange({ from: range.from + move[0] * width, to: range.to + move[1] * width });
    else if (event.key === "Escape" || event.key === "0") this.range("");
    else return;
    event.preventDefault();
  }
}

/** A range so many times as wide, for what a reader may move to next. */
function widened([from, to], times) {
  const more = ((to - from) * (times - 1)) / 2;
  return { from: from - more, to: to + more };
}

function nearestTime(times, time) {
  let found = times[0];
  for (const each of times) {
    if (each > time) break;
    found = each;
  }
  return found;
}

/** Decimals with which the prices differ from each other. */
function decimals(prices) {
  const some = prices.filter((price) => price !== null).slice(0, 50);
  const size = Math.max(...some.map(Math.abs), 1e-9);
  return Math.max(2, Math.min(8, 4 - Math.floor(Math.log10(size)) - 1));
}
