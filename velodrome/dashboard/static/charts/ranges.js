/** Where values of series lie: from where to where, the last one, the one nearest to a place. */

const SHORTEST = 120; // seconds that a chart over time shows at least; the marks of fewer would be the same minute

/** First and last x of some series, with room around a single point. */
export function rangeX(series, kind) {
  let low = Infinity;
  let high = -Infinity;
  for (const { x } of series) {
    if (!x.length) continue;
    low = Math.min(low, x[0]);
    high = Math.max(high, x[x.length - 1]);
  }
  if (low > high) return [0, 1];
  if (kind === "time") return [Math.min(low, high - SHORTEST), high];
  if (low < high) return [low, high];
  const room = kind === "steps" ? Math.max(1, Math.abs(low) * 0.5) : 1;
  return [low - room, high + room];
}

/** Least and greatest y between two x, with a little room. band: {x, low, high} that is drawn, too. */
export function rangeY(series, [from, to], { band, zero, isLog }) {
  let low = zero ? 0 : Infinity;
  let high = zero ? 0 : -Infinity;
  const look = (x, y) => {
    const end = Math.min(x.length - 1, nearest(x, to) + 1);
    for (let at = Math.max(0, nearest(x, from) - 1); at <= end; at += 1) {
      const value = y[at];
      if (value === null || value === undefined) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  };
  for (const { x, y } of series) look(x, y);
  if (band) for (const y of [band.low, band.high]) look(band.x, y);
  if (low > high) return [0, 1];
  if (isLog) return [low / 1.05, high * 1.05];
  if (high === low && zero) return high > 0 ? [0, high * 1.1] : high < 0 ? [low * 1.1, 0] : [0, 1];
  const room = high === low ? Math.max(Math.abs(high) * 0.1, 1e-6) : (high - low) * 0.06;
  return [zero && low === 0 ? 0 : low - room, zero && high === 0 ? 0 : high + room];
}

/** The last value that there is. */
export function lastOf({ y }) {
  for (let at = y.length - 1; at >= 0; at -= 1) if (y[at] !== null && y[at] !== undefined) return y[at];
  return null;
}

/** The last value that there is up to an x. */
export function lastWithin({ x, y }, end) {
  for (let at = y.length - 1; at >= 0; at -= 1) if (x[at] <= end && y[at] !== null && y[at] !== undefined) return y[at];
  return null;
}

/** Place of the value nearest to x in an ascending list. */
export function nearest(list, x) {
  let low = 0;
  let high = list.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle] < x) low = middle;
    else high = middle;
  }
  return x - list[low] <= list[high] - x ? low : high;
}
