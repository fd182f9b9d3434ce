/** How series are told apart: by colour, by dashes, and by a label at their end. */

import { s } from "../core/element.js";
import { colour } from "../core/theme.js";

const DASHES = [[], [7, 4], [2, 3], [10, 4, 2, 4], [14, 5], [5, 2, 1, 2, 1, 2], [4, 4], [1, 4]];
const COLOURS = 12;
/** Colours that a name has on every page. */
const OWN = new Set([
  "agent",
  "forecast",
  "buy_and_hold",
  "random",
  "always_flat",
  "equal_held",
  "equal_rebalanced",
  "momentum",
  "best_single",
  "others",
  "gain",
  "loss",
  "price",
]);
/** Line patterns of baselines, so that the agent's is the one unbroken line. */
const OWN_DASHES = {
  agent: [],
  buy_and_hold: [7, 4],
  equal_held: [7, 4],
  random: [2, 3],
  always_flat: [10, 4, 2, 4],
  equal_rebalanced: [14, 5],
  momentum: [5, 2, 1, 2, 1, 2],
  best_single: [1, 4],
  forecast: [4, 4],
};

/** Name of the colour of a series: of its name, if that has one, else of its place. */
export const colourName = (place, name = "") => (OWN.has(name) ? name : `series-${place % COLOURS}`);

/** Dashes of a series in px. */
export function dashes(place, name = "") {
  return OWN_DASHES[name] ?? DASHES[(place + Math.floor(place / COLOURS)) % DASHES.length];
}

/** A short piece of a series as it is drawn in the chart: a line, an area or a dot. */
export function sample(name, dash, shape = "line") {
  const made = {
    area: () => s("rect", { x: "2", y: "1", width: "18", height: "10", rx: "2", fill: colour(name) }),
    dot: () => s("circle", { cx: "11", cy: "6", r: "3.5", fill: colour(name) }),
    line: () =>
      s("line", {
        ...{ x1: "0", y1: "6", x2: "22", y2: "6", stroke: colour(name), "stroke-width": "2.4" },
        "stroke-dasharray": dash.length ? dash.join(" ") : null,
      }),
  };
  return s("svg", { width: "22", height: "12", "aria-hidden": "true" }, made[shape]());
}
