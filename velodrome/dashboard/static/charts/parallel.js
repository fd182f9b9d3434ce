/**
 * Trials as lines over the settings that they tried. Dragging on an axis keeps those within; several axes may be
 * brushed. Keys on an axis: arrows move a window over it, plus and minus widen and narrow it, Escape takes it away.
 */

import { fill, h } from "../core/element.js";
import { figure } from "../core/format.js";
import { colour, faded, onTheme } from "../core/theme.js";

const TOP = 34; // px, as in charts.css
const BOTTOM = 26;
const LEAST = 92; // px between two axes

/**
 * @typedef {object} Axis
 * @property {string} key
 * @property {string} name
 * @property {any[]} values by row; null where there is none
 * @property {boolean} [log]
 * @property {any[]} [choices] in order, for those that are no numbers
 */

export class Parallel {
  /** @param {string} label @param {(kept: number[] | null) => void} brushed rows within all brushes, null: all */
  constructor(label, brushed, signal) {
    this.brushed = brushed;
    this.axes = [];
    this.rows = [];
    this.brushes = new Map();
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.inner = h("div.inner", this.canvas);
    this.node = h("div.parallel", { role: "group", "aria-label": label, tabindex: "0" }, this.inner);
    const observer = new ResizeObserver(() => this.layout());
    observer.observe(this.node);
    const forget = onTheme(() => this.draw());
    signal?.addEventListener("abort", () => {
      observer.disconnect();
      forget();
    });
  }

  /** @param {Axis[]} axes @param {number[]} rows to draw @param {(number | null)[]} scores by row @param {number | null} best its row */
  data(axes, rows, scores, best) {
    const isSame = axes.length === this.axes.length && axes.every((axis, place) => axis.key === this.axes[place].key);
    Object.assign(this, { rows, scores, best });
    this.axes = axes.map((axis) => this.scaled(axis));
    const known = new Set(axes.map((axis) => axis.key));
    for (const key of this.brushes.keys()) if (!known.has(key)) this.brushes.delete(key);
    const told = scores.filter((score) => score !== null).sort((a, b) => a - b);
    this.good = told.length ? told[Math.floor(told.length * 0.75)] : Infinity;
    if (isSame) this.draw();
    else this.layout(true);
  }

  /** An axis with the place (0 below, 1 above) of each row on it. */
  scaled(axis) {
    const present = axis.values.filter((value) => value !== null && value !== undefined);
    const isNumeric = !axis.choices && present.every((value) => typeof value === "number");
    if (!isNumeric) {
      const choices = (axis.choices ?? [...new Set(present.map(String))].sort()).map(String);
      const at = (value) => (choices.length < 2 ? 0.5 : choices.indexOf(String(value)) / (choices.length - 1));
      return {
        ...axis,
        places: axis.values.map((value) => (value === null || value === undefined ? null : at(value))),
        low: choices[0] ?? "",
        high: choices.length > 1 ? choices[choices.length - 1] : "",
      };
    }
    const turn = axis.log ? Math.log : (value) => value;
    let low = Infinity;
    let high = -Infinity;
    for (const value of present) {
      low = Math.min(low, turn(value));
      high = Math.max(high, turn(value));
    }
    const width = high - low || 1;
    const places = axis.values.map((value) => (typeof value === "number" ? (turn(value) - low) / width : null));
    const back = axis.log ? Math.exp : (value) => value;
    return {
      ...axis,
      places,
      low: present.length ? figure(back(low), axis.kind) : "",
      high: present.length ? figure(back(high), axis.kind) : "",
    };
  }

  layout(isNew = false) {
    const room = this.node.clientWidth;
    if (room === 0 || !this.axes.length) return;
    this.width = Math.max(room, LEAST * this.axes.length);
    this.height = this.node.clientHeight;
    const ratio = devicePixelRatio;
    this.canvas.width = this.width * ratio;
    this.canvas.height = this.height * ratio;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.inner.style.width = `${this.width}px`;
    const step = this.width / this.axes.length;
    this.lefts = this.axes.map((_, place) => step * (place + 0.5));
    if (isNew || !this.parts) this.makeAxes();
    this.parts.forEach(({ axis, name, high, low }, place) => {
      for (const node of [axis, name, high, low]) node.style.left = `${this.lefts[place]}px`;
      name.style.maxWidth = high.style.maxWidth = low.style.maxWidth = `${step - 6}px`;
      high.style.top = "17px";
      low.style.bottom = "6px";
    });
    this.draw();
  }

  makeAxes() {
    this.parts = this.axes.map((axis) => {
      const brush = h("div.brush", { hidden: true });
      const node = h(
        "div.axis",
        {
          tabindex: "0",
          role: "application",
          "aria-roledescription": "axis",
          "aria-label": `${axis.name}, from ${axis.low} to ${axis.high}. Arrow keys choose a part, Escape all.`,
        },
        brush,
      );
      this.listen(node, axis.key);
      return {
        axis: node,
        brush,
        name: h("span.axis-name", { title: axis.title ?? axis.name }, axis.name),
        high: h("span.axis-end", axis.high),
        low: h("span.axis-end", axis.low),
      };
    });
    fill(
      this.inner,
      this.canvas,
      this.parts.map(({ axis, name, high, low }) => [axis, name, high, low]),
    );
  }

  listen(node, key) {
    let start = null;
    const at = (event) => {
      const box = node.getBoundingClientRect();
      return Math.min(1, Math.max(0, 1 - (event.clientY - box.top) / box.height));
    };
    node.addEventListener("pointerdown", (event) => {
      start = at(event);
      node.setPointerCapture(event.pointerId);
      event.preventDefault();
      node.focus({ preventScroll: true });
    });
    node.addEventListener("pointermove", (event) => {
      if (start !== null) this.brush(key, [Math.min(start, at(event)), Math.max(start, at(event))], false);
    });
    node.addEventListener("pointerup", (event) => {
      const [low, high] = [Math.min(start, at(event)), Math.max(start, at(event))];
      start = null;
      this.brush(key, high - low < 0.02 ? null : [low, high]); // a click takes the brush away
    });
    node.addEventListener("keydown", (event) => {
      const [low, high] = this.brushes.get(key) ?? [0, 1];
      const isAll = !this.brushes.has(key);
      const moved = {
        ArrowUp: isAll ? [0.75, 1] : [Math.min(0.95, low + 0.05), Math.min(1, high + 0.05)],
        ArrowDown: isAll ? [0, 0.25] : [Math.max(0, low - 0.05), Math.max(0.05, high - 0.05)],
        "+": [Math.max(0, low - 0.05), Math.min(1, high + 0.05)],
        "-": high - low > 0.15 ? [low + 0.05, high - 0.05] : [low, high],
        Escape: null,
      }[event.key];
      if (moved === undefined) return;
      event.preventDefault();
      this.brush(key, moved);
    });
  }

  brush(key, range, isTold = true) {
    if (range === null) this.brushes.delete(key);
    else this.brushes.set(key, range);
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
    if (isTold) this.brushed(this.brushes.size ? this.rows.filter((row) => this.isKept(row)) : null);
  }

  clear() {
    this.brushes.clear();
    this.draw();
    this.brushed(null);
  }

  isKept(row) {
    for (const axis of this.axes) {
      const range = this.brushes.get(axis.key);
      if (!range) continue;
      const place = axis.places[row];
      if (place === null || place < range[0] - 1e-9 || place > range[1] + 1e-9) return false;
    }
    return true;
  }

  draw() {
    if (!this.parts || !this.axes.length || !this.lefts) return;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    const tall = this.height - TOP - BOTTOM;
    const line = (row) => {
      let isOpen = false;
      this.axes.forEach((axis, place) => {
        const at = axis.places[row];
        if (at === null) return void (isOpen = false);
        const y = TOP + (1 - at) * tall;
        if (isOpen) pen.lineTo(this.lefts[place], y);
        else pen.moveTo(this.lefts[place], y);
        isOpen = true;
      });
    };
    const groups = { out: [], kept: [], good: [] };
    for (const row of this.rows) {
      const isGood = this.scores[row] !== null && this.scores[row] >= this.good;
      groups[!this.isKept(row) ? "out" : isGood ? "good" : "kept"].push(row);
    }
    const share = Math.max(0.12, Math.min(0.7, 60 / Math.max(1, this.rows.length)));
    const styles = {
      out: [faded("others", share * 0.4), 1, []],
      kept: [faded("others", Math.min(1, share * 1.6)), 1, [4, 3]],
      good: [faded("agent", Math.min(1, share * 2)), 1.5, []],
    };
    for (const [name, rows] of Object.entries(groups)) {
      [pen.strokeStyle, pen.lineWidth] = styles[name];
      pen.setLineDash(this.rows.length > 800 ? [] : styles[name][2]);
      pen.beginPath();
      rows.forEach(line);
      pen.stroke();
    }
    if (this.best !== null && this.best !== undefined) {
      pen.setLineDash([]);
      pen.strokeStyle = colour("gain");
      pen.lineWidth = 3;
      pen.beginPath();
      line(this.best);
      pen.stroke();
    }
    this.parts.forEach(({ brush }, place) => {
      const range = this.brushes.get(this.axes[place].key);
      brush.hidden = !range;
      if (!range) return;
      brush.style.top = `${(1 - range[1]) * 100}%`;
      brush.style.height = `${Math.max(1, (range[1] - range[0]) * 100)}%`;
    });
  }
}
