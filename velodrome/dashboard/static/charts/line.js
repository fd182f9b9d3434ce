/**
 * Lines over steps or time, drawn by uPlot. Every series has its own x values (uPlot's mode 2): curves of different
 * runs are thinned on their own. Dragging zooms, a double click shows all; keys do the same (see `keys`).
 */

import { fill, h, write } from "../core/element.js";
import { figure, mark, marketTime, moment, short, timeMarks } from "../core/format.js";
import { colour, faded, onTheme } from "../core/theme.js";
import uPlot from "../vendor/uplot/uPlot.js";
import { AXIS, axisRoom, drawBand, drawDots, drawLabels, labelRoom } from "./marks.js";
import { colourName, dashes, sample } from "./palette.js";
import { lastOf, nearest, rangeX, rangeY } from "./ranges.js";

const LABELLED = 8; // series that have their label at the end of the line
const LISTED = 24; // series that the legend names one by one
const MARK_ROOM = 28; // px, half of the last mark of x
const NARROW = 520; // px, under which labels at the end would take the room of the lines
const WHOLE_STEPS = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((count) => count * 10 ** power)).flat();
const WRITE_X = {
  steps: short,
  time: moment,
  market: marketTime,
  number: (value) => figure(value),
  whole: (value) => figure(value, "whole"),
};

/**
 * @typedef {object} Series
 * @property {string} label
 * @property {number[]} x ascending
 * @property {(number | null)[]} y
 * @property {string} [name] chooses colour and dashes, where it is a known one
 * @property {number[]} [dash]
 * @property {boolean} [area] filled down to zero
 * @property {boolean} [points] dots rather than a line
 * @property {number} [width]
 */

export class LineChart {
  /**
   * @param {string} label what the chart shows, for those who do not see it
   * @param {{height?: number, x?: string, y?: string, zoomed?: (from: number | null, to: number | null) => void,
   *   logarithmic?: boolean, none?: string, zero?: boolean, legend?: boolean, signal?: AbortSignal,
   *   picked?: (series: Series, place: number) => void}} options picked: a point was clicked
   */
  constructor(
    label,
    {
      height = 260,
      x = "steps",
      y = "number",
      zoomed = null,
      logarithmic = false,
      none = "Nothing was measured yet.",
      zero = false,
      legend = true,
      signal = null,
      picked = null,
    } = {},
  ) {
    Object.assign(this, {
      label,
      height,
      kindX: x,
      kindY: y,
      zoomed,
      logarithmic,
      none,
      zero,
      showsLegend: legend,
      picked,
    });
    this.series = [];
    this.hidden = new Set();
    this.zoom = null;
    this.band = null;
    this.legend = h("ul.legend");
    this.plot = h("div.plot", {
      tabindex: "0",
      role: "application",
      "aria-roledescription": "chart",
      on: { keydown: (event) => this.keys(event) },
    });
    this.plot.style.setProperty("--chart-height", `${height}px`);
    this.node = h("div.chart", this.legend, this.plot);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.plot);
    const forget = onTheme(() => this.build());
    signal?.addEventListener("abort", () => {
      forget();
      this.observer.disconnect();
      this.chart?.destroy();
      this.chart = null;
    });
  }

  /** Show these series. `band`: {low, high, x}, a range that is filled behind the lines. */
  data(series, band = null) {
    const isSame =
      this.chart &&
      series.length === this.series.length &&
      series.every((each, place) => each.label === this.series[place].label);
    this.series = series;
    this.band = band;
    this.plot.setAttribute("aria-label", this.summary());
    if (isSame && series.some((each) => each.x.length)) {
      this.chart.setData(this.columns(), false);
      this.rescale();
      this.read(null);
    } else this.build();
  }

  columns() {
    return [null, ...this.series.map(({ x, y }) => [x, y])];
  }

  summary() {
    const told = this.series.slice(0, LABELLED).map((each) => {
      const last = lastOf(each);
      return last === null ? `${each.label}: nothing` : `${each.label}: ${figure(last, this.kindY)} at the end`;
    });
    const more = this.series.length > LABELLED ? `, and ${this.series.length - LABELLED} more` : "";
    return `${this.label}. ${told.join("; ")}${more}. Arrow keys read values, plus and minus zoom, Escape shows all.`;
  }

  look(place) {
    const each = this.series[place];
    return { name: each.colour ?? colourName(place, each.name), dash: each.dash ?? dashes(place, each.name) };
  }

  build() {
    this.chart?.destroy();
    this.chart = null;
    const width = this.plot.clientWidth;
    const isEmpty = !this.series.some((each) => each.x.length);
    this.drawLegend();
    if (isEmpty) return void fill(this.plot, h("p.none", this.none));
    fill(this.plot);
    if (width === 0) return; // not in sight yet; the observer calls again
    const isMany = this.series.length > LISTED;
    this.isLabelled = this.series.length > 1 && this.series.length <= LABELLED && width >= NARROW;
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: colour("muted"), font, grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false } };
    const isTime = this.kindX === "time" || this.kindX === "market";
    const options = {
      mode: 2,
      width,
      height: this.plot.clientHeight || this.height,
      padding: [10, this.isLabelled ? labelRoom(this.series, font) : MARK_ROOM, 0, 0],
      legend: { show: false },
      tzDate:
        this.kindX === "market" ? (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC") : (at) => new Date(at * 1000),
      cursor: {
        points: { show: false },
        y: false,
        dataIdx: () => null,
        drag: { x: true, y: false, setScale: false },
        focus: { prox: -1 },
      },
      scales: {
        x: { time: isTime, auto: false, range: () => this.rangeX() },
        y: { distr: this.isLog() ? 3 : 1, auto: false, range: () => this.rangeY() },
      },
      axes: [
        {
          ...axis,
          space: 80,
          size: isTime ? 46 : 32,
          ...(this.kindX === "whole" && { incrs: WHOLE_STEPS }),
          values: (_, splits, __, ___, step) =>
            isTime
              ? timeMarks(splits, step, this.kindX === "market")
              : splits.map((value) => mark(value, this.kindX === "steps" ? "steps" : "number", step)),
        },
        {
          ...axis,
          size: (_, marks) => (marks ? axisRoom(marks, font) : AXIS),
          values: (_, splits, __, ___, step) =>
            splits.map((value) => (value === null ? "" : mark(value, this.kindY, step))),
        },
      ],
      series: [
        null,
        ...this.series.map((each, place) => {
          const { name, dash } = this.look(place);
          return {
            show: !this.hidden.has(each.label),
            facets: [
              { scale: "x", auto: false, sorted: 1 },
              { scale: "y", auto: false },
            ],
            stroke: each.area
              ? each.x.length > 400
                ? undefined
                : colour("card")
              : isMany
                ? faded(name, 0.55)
                : colour(name),
            width: each.width ?? (isMany || each.area ? 1 : 1.8),
            dash: isMany || each.area ? undefined : dash,
            fill: each.area ? colour(name) : undefined,
            fillTo: () => 0,
            paths: each.points ? () => null : uPlot.paths.linear(),
            points: { show: Boolean(each.points) || each.x.length === 1, size: 5, filter: () => null },
          };
        }),
      ],
      hooks: {
        drawAxes: [(u) => this.band && drawBand(u, this.band)],
        draw: [(u) => this.drawMarks(u, font)],
        setCursor: [(u) => this.read(u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null)],
        setSelect: [
          (u) => {
            if (u.select.width < 6) return;
            this.setZoom(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
            u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          },
        ],
      },
    };
    this.chart = new uPlot(options, this.columns(), this.plot);
    this.chart.over.addEventListener("dblclick", () => this.setZoom(null, null));
    if (this.picked) this.chart.over.addEventListener("click", (event) => this.pick(event));
    this.rescale();
  }

  isLog() {
    return this.logarithmic && this.series.every((each) => each.y.every((value) => value === null || value > 0));
  }

  shown() {
    return this.series.filter((each) => !this.hidden.has(each.label));
  }

  rangeX() {
    return this.zoom ?? rangeX(this.shown(), this.kindX);
  }

  rangeY() {
    return rangeY(this.shown(), this.rangeX(), { band: this.band, zero: this.zero, isLog: this.isLog() });
  }

  rescale() {
    const chart = this.chart;
    if (!chart) return;
    const [low, high] = this.rangeX();
    const [bottom, top] = this.rangeY();
    // In this mode uPlot keeps paths as long as y is unchanged, though x has moved.
    for (const each of chart.series) if (each) each._paths = null;
    chart.batch(() => {
      chart.setScale("x", { min: low, max: high });
      chart.setScale("y", { min: bottom, max: top });
    });
  }

  /** Show x from here to there, or everything. */
  setZoom(from, to, isTold = true) {
    this.zoom = from === null ? null : [from, to];
    this.rescale();
    if (isTold) this.zoomed?.(from, to);
  }

  resize() {
    const width = this.plot.clientWidth;
    if (width === 0) return;
    if (
      !this.chart ||
      (this.isLabelled && width < NARROW) ||
      (!this.isLabelled && this.chart.width < NARROW && width >= NARROW)
    )
      this.build();
    else if (width !== this.chart.width) this.chart.setSize({ width, height: this.plot.clientHeight || this.height });
  }

  /** Dots, and labels at the ends of lines. */
  drawMarks(u, font) {
    const known = this.series
      .map((each, place) => ({ each, colour: this.look(place).name }))
      .filter(({ each }) => !this.hidden.has(each.label));
    drawDots(u, known);
    if (this.isLabelled) drawLabels(u, known, this.rangeX()[1], font);
  }

  drawLegend() {
    this.readings = [];
    this.at = h("li.at");
    this.legend.hidden = !this.showsLegend;
    if (!this.showsLegend) return;
    if (this.series.length > LISTED) {
      this.nearestText = h("span.read");
      return void fill(this.legend, h("li", `${this.series.length} curves`), this.at, h("li", this.nearestText));
    }
    const items = this.series.map((each, place) => {
      const { name, dash } = this.look(place);
      const reading = h("span.read");
      this.readings.push(reading);
      const button = h(
        "button",
        {
          type: "button",
          "aria-pressed": String(!this.hidden.has(each.label)),
          on: {
            click: () => {
              if (this.hidden.has(each.label)) this.hidden.delete(each.label);
              else this.hidden.add(each.label);
              button.setAttribute("aria-pressed", String(!this.hidden.has(each.label)));
              this.chart?.setSeries(place + 1, { show: !this.hidden.has(each.label) });
              this.rescale();
            },
          },
        },
        sample(name, dash, each.area ? "area" : each.points ? "dot" : "line"),
        each.label,
      );
      return h(
        "li",
        this.series.length > 1
          ? button
          : [sample(name, dash, each.area ? "area" : each.points ? "dot" : "line"), each.label],
        reading,
      );
    });
    fill(this.legend, items, this.at);
    this.read(null);
  }

  /** Tell the values at an x, or the last ones. */
  read(x) {
    this.reading = x;
    if (!this.showsLegend) return;
    if (this.series.length > LISTED) return this.readNearest(x);
    write(this.at, x === null ? "" : WRITE_X[this.kindX](x));
    this.series.forEach((each, place) => {
      if (!this.readings[place]) return;
      const value = x === null ? lastOf(each) : each.x.length ? each.y[nearest(each.x, x)] : null;
      write(
        this.readings[place],
        value === null
          ? ""
          : figure(each.told ? each.told[x === null ? each.told.length - 1 : nearest(each.x, x)] : value, this.kindY),
      );
    });
  }

  readNearest(x) {
    const chart = this.chart;
    write(this.at, x === null ? "" : WRITE_X[this.kindX](x));
    if (x === null || !chart) return write(this.nearestText, "");
    const height = chart.posToVal(chart.cursor.top, "y");
    let best = null;
    for (const each of this.shown()) {
      if (!each.x.length) continue;
      const value = each.y[nearest(each.x, x)];
      if (value !== null && (best === null || Math.abs(value - height) < best.away))
        best = { each, value, away: Math.abs(value - height) };
    }
    write(this.nearestText, best ? `${best.each.label}: ${figure(best.value, this.kindY)}` : "");
  }

  /** Tell which point lies nearest to a click, within a finger's breadth. */
  pick(event) {
    const [u, box] = [this.chart, this.chart.over.getBoundingClientRect()];
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    let best = null;
    for (const each of this.shown()) {
      each.x.forEach((x, at) => {
        if (each.y[at] === null) return;
        const away = Math.hypot(u.valToPos(x, "x") - left, u.valToPos(each.y[at], "y") - top);
        if (away < 24 && (best === null || away < best.away)) best = { each, at, away };
      });
    }
    if (best) this.picked(best.each, best.at);
  }

  /** Arrows read values, with Shift they move; plus and minus zoom; Escape and 0 show all. */
  keys(event) {
    if (!this.chart || event.ctrlKey || event.metaKey || event.altKey) return;
    const [low, high] = this.rangeX();
    const width = high - low;
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (direction && event.shiftKey) this.setZoom(low + direction * width * 0.2, high + direction * width * 0.2);
    else if (direction) {
      const at = Math.min(high, Math.max(low, (this.reading ?? low + width / 2) + (direction * width) / 50));
      this.chart.setCursor({ left: this.chart.valToPos(at, "x"), top: 10 });
    } else if (event.key === "+" || event.key === "=") this.setZoom(low + width * 0.2, high - width * 0.2);
    else if (event.key === "-") this.setZoom(low - width * 0.25, high + width * 0.25);
    else if (event.key === "Escape" || event.key === "0") this.setZoom(null, null);
    else return;
    event.preventDefault();
  }
}
