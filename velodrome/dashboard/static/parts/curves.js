/** Metrics of runs as charts: loaded thinned, grown while they train, raw where a reader zooms in. */

import { get, isLeaving } from "../core/api.js";
import { fill, h } from "../core/element.js";
import { LineChart } from "../charts/line.js";
import { stack } from "../charts/stacked.js";
import { complain } from "./notices.js";
import { card, select } from "./basics.js";

const AT_ONCE = 60; // names in one question
const GROWN = 4000; // points of a curve after which it is asked for anew, thinned

/** The curves of some runs by the name of their metric. */
export class Curves {
  /** @param {{id: string, name: string}[]} runs @param {AbortSignal} signal */
  constructor(runs, signal, points = 1000) {
    Object.assign(this, { runs, signal, points });
    this.byName = new Map();
    this.label = new Map(runs.map((run) => [run.id, run.name]));
  }

  async ask(names, more = {}) {
    const found = [];
    for (let at = 0; at < names.length; at += AT_ONCE) {
      const asked = {
        runs: this.runs.map((run) => run.id).join(","),
        names: names.slice(at, at + AT_ONCE).join(","),
        points: this.points,
        ...more,
      };
      found.push(...(await get("api/metrics", asked, this.signal)).curves);
    }
    return found;
  }

  /** Load these metrics whole. */
  async load(names) {
    this.names = names;
    this.byName = this.sorted(await this.ask(names));
  }

  sorted(curves) {
    const byName = new Map();
    for (const curve of curves) {
      if (!byName.has(curve.name)) byName.set(curve.name, []);
      byName.get(curve.name).push(curve);
    }
    return byName;
  }

  /** Ask for what came since; whole again if names are new or a curve has grown long. */
  async grow(names = this.names) {
    const all = [...this.byName.values()].flat();
    const isNew = names.some((name) => !this.names.includes(name));
    if (!all.length || isNew || all.some((curve) => curve.x.length > GROWN)) return this.load(names);
    const last = Math.min(...all.map((curve) => curve.x[curve.x.length - 1] ?? 0));
    for (const more of await this.ask(this.names, { from: last })) {
      const known = this.byName.get(more.name)?.find((curve) => curve.run === more.run && curve.member === more.member);
      if (!known) return this.load(this.names);
      const end = known.x[known.x.length - 1] ?? -Infinity;
      more.x.forEach((x, at) => {
        if (x <= end) return;
        known.x.push(x);
        known.y.push(more.y[at]);
      });
    }
  }

  /** Series of a metric, one for each run and seed. */
  of(name, curves = this.byName) {
    const found = curves.get(name) ?? [];
    const isOne = this.runs.length === 1;
    return found.map((curve) => {
      const seeds = curve.group !== null;
      const run = this.label.get(curve.group ?? curve.run) ?? curve.run;
      return {
        ...curve,
        name: "",
        label: isOne ? (seeds ? `seed ${curve.seed}` : lastPart(name)) : seeds ? `${run}, seed ${curve.seed}` : run,
      };
    });
  }
}

/**
 * A chart of metrics, in a card. `groups`: [[key, title, [names], how]], of which one is shown; how: {kind, share}.
 * With several names in a group each is a line of its own; `share` makes them parts of a whole.
 */
export function metricCard(title, curves, groups, { about = null, height = 260, signal, level = "h2" } = {}) {
  let chosen = groups[0][0];
  const host = h("div");
  const box =
    groups.length > 1
      ? select(
          "Figure",
          groups.map(([key, text]) => [key, text]),
          chosen,
          (key) => {
            chosen = key;
            build();
          },
        )
      : null;
  const node = card(title, { about, actions: box, level }, host);
  let chart = null;
  let zoom = null;

  const group = () => groups.find(([key]) => key === chosen);

  function series(found) {
    const [, , names, how = {}] = group();
    if (how.share)
      return stack(
        asShares(
          names
            .map((name) => ({
              ...(found.get(name)?.[0] ?? { x: [], y: [] }),
              label: how.labels?.[name] ?? lastPart(name),
              name: "",
            }))
            .filter((curve) => curve.x.length),
        ),
      );
    const each = names.map((name) => [name, curves.of(name, found)]);
    if (each.length === 1) return each[0][1];
    return each.flatMap(([name, lines]) =>
      lines.map((line) => ({
        ...line,
        label:
          lines.length > 1 || curves.runs.length > 1
            ? `${how.labels?.[name] ?? lastPart(name)}, ${line.label}`
            : (how.labels?.[name] ?? lastPart(name)),
      })),
    );
  }

  function build() {
    const [, text, , how = {}] = group();
    zoom = null;
    chart = new LineChart(`${title}: ${text}`, {
      y: how.kind ?? "number",
      zero: Boolean(how.share),
      height,
      zoomed: see,
      signal,
    });
    fill(host, chart.node);
    draw();
  }

  function draw() {
    if (!zoom) chart.data(series(curves.byName));
  }

  async function see(from, to) {
    zoom = from === null ? null : [from, to];
    if (!zoom) return draw();
    const width = to - from;
    try {
      const found = await curves.ask(group()[2], {
        from: Math.floor(from - width / 4),
        to: Math.ceil(to + width / 4),
        points: 2000,
      });
      if (zoom && zoom[0] === from) chart.data(series(curves.sorted(found)));
    } catch (error) {
      if (!isLeaving(error)) complain(error);
    }
  }

  build();
  return { node, draw };
}

const lastPart = (name) => name.split("/").pop().replaceAll("_", " ");

/** The same curves as shares of their sum, step by step. */
function asShares(curves) {
  const length = Math.min(...curves.map((curve) => curve.x.length));
  if (!curves.length || !length) return [];
  const sums = Array.from(
    { length },
    (_, at) => curves.reduce((sum, curve) => sum + Math.abs(curve.y[at] ?? 0), 0) || 1,
  );
  return curves.map((curve) => ({
    ...curve,
    x: curve.x.slice(0, length),
    y: curve.y.slice(0, length).map((value, at) => (value ?? 0) / sums[at]),
  }));
}
