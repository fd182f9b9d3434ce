/** Shares over time, one above the other: phases of the work, actions, weights of a portfolio. */

import { LineChart } from "./line.js";
import { nearest } from "./ranges.js";

/**
 * Series that lie on each other, for a chart of lines. What is negative (short) is laid below zero, on its own.
 * The highest comes first, so that each covers what is above it only.
 */
export function stack(curves) {
  const grid = curves.reduce((longest, curve) => (curve.x.length > longest.length ? curve.x : longest), []);
  const on = (curve) =>
    curve.x === grid || same(curve.x, grid)
      ? curve.y
      : grid.map((x) => (curve.x.length ? curve.y[nearest(curve.x, x)] : null));
  const high = new Array(grid.length).fill(0);
  const low = new Array(grid.length).fill(0);
  const above = [];
  const below = [];
  curves.forEach((curve, place) => {
    const told = on(curve).map((value) => value ?? 0);
    const about = {
      label: curve.label,
      name: curve.name,
      colour: curve.colour ?? `series-${place % 12}`,
      area: true,
      x: grid,
      told,
    };
    if (told.some((value) => value > 0) || !told.some((value) => value < 0))
      above.unshift({ ...about, y: told.map((value, at) => (high[at] += Math.max(0, value))) });
    if (told.some((value) => value < 0))
      below.unshift({
        ...about,
        label: `${curve.label} (short)`,
        y: told.map((value, at) => (low[at] += Math.min(0, value))),
      });
  });
  return [...above, ...below];
}

const same = (a, b) => a.length === b.length && a[0] === b[0] && a[a.length - 1] === b[b.length - 1];

/** A chart of such series. */
export class StackedChart extends LineChart {
  constructor(label, options = {}) {
    super(label, { y: "percent", zero: true, ...options });
  }

  data(curves) {
    this.curves = curves;
    super.data(stack(curves.map((curve) => calmed(curve, this.zoom))));
  }

  setZoom(from, to, isTold = true) {
    super.setZoom(from, to, isTold);
    if (this.curves) this.data(this.curves);
  }
}

const CALM = 240; // points in sight; of more, means are drawn, for a thousand slivers cannot be read

/** The same curve within the sight, as means of so many neighbours that it can be read. */
function calmed(curve, sight) {
  const [from, to] = sight ?? [-Infinity, Infinity];
  let [first, last] = [0, curve.x.length - 1];
  while (first < last && curve.x[first + 1] < from) first += 1;
  while (last > first && curve.x[last - 1] > to) last -= 1;
  const size = Math.ceil((last - first + 1) / CALM);
  if (size <= 1) return curve;
  const [x, y] = [[], []];
  for (let at = first; at <= last; at += size) {
    const values = curve.y.slice(at, Math.min(at + size, last + 1)).filter((value) => value !== null);
    x.push(curve.x[Math.min(at + size - 1, last)]);
    y.push(values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
  }
  return { ...curve, x, y };
}
