/** What is drawn on a chart of lines besides the lines: labels at their ends, dots, a band behind them. */

import { colour, faded } from "../core/theme.js";
import { lastWithin } from "./ranges.js";

export const AXIS = 62; // px of the axis of values, if its marks are short
const LINE = 14; // px from one label to the next
const pen = document.createElement("canvas").getContext("2d");

function longest(texts, font) {
  pen.font = font;
  return Math.max(0, ...texts.map((text) => pen.measureText(text).width));
}

/** Room for the labels at the ends of lines, in px. */
export const labelRoom = (series, font) =>
  Math.min(
    170,
    longest(
      series.map((each) => each.label),
      font,
    ) + 16,
  );

/** Room for the marks of the axis of values, in px: a step at a time, so that it seldom changes while values come in. */
export const axisRoom = (marks, font) => Math.max(AXIS, Math.ceil((longest(marks, font) + 16) / 12) * 12);

/** A text, cut where it is wider than so many pixels of a canvas: squeezed into them, nobody could read it. */
export function shortened(ctx, text, width) {
  let told = text;
  for (let count = text.length; ctx.measureText(told).width > width && count > 1; told = `${text.slice(0, count)}…`)
    count = Math.min(count - 1, Math.ceil((count * width) / ctx.measureText(told).width));
  return told;
}

/** Write each label beside the end of its line, moved apart where they would lie on each other. */
export function drawLabels(u, known, end, font) {
  const ratio = devicePixelRatio;
  const right = (u.over.offsetLeft + u.over.clientWidth) * ratio;
  const [top, bottom] = [u.over.offsetTop * ratio, (u.over.offsetTop + u.over.clientHeight) * ratio];
  const places = known
    .map((one) => ({ ...one, value: lastWithin(one.each, end) }))
    .filter(({ value }) => value !== null)
    .map((one) => ({ ...one, at: Math.min(bottom, Math.max(top, u.valToPos(one.value, "y", true))) }))
    .sort((a, b) => a.at - b.at);
  const step = LINE * ratio;
  for (let at = 1; at < places.length; at += 1) places[at].at = Math.max(places[at].at, places[at - 1].at + step);
  let limit = bottom;
  for (let at = places.length - 1; at >= 0; at -= 1, limit -= step) places[at].at = Math.min(places[at].at, limit);
  const { ctx } = u;
  ctx.save();
  ctx.font = font.replace("12px", `${12 * ratio}px`);
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  for (const { each, at, colour: name } of places) {
    ctx.fillStyle = colour(name);
    ctx.fillText(shortened(ctx, each.label, 154 * ratio), right + 8 * ratio, at);
  }
  ctx.restore();
}

/** Dots of series that are no lines, and of those with a single point. */
export function drawDots(u, known) {
  const { ctx } = u;
  ctx.save();
  for (const { each, colour: name } of known) {
    if (!(each.points || each.x.length === 1)) continue;
    ctx.fillStyle = colour(name);
    each.x.forEach((x, at) => {
      if (each.y[at] === null) return;
      const [left, top] = [u.valToPos(x, "x", true), u.valToPos(each.y[at], "y", true)];
      if (left < u.bbox.left - 1 || left > u.bbox.left + u.bbox.width + 1) return;
      ctx.beginPath();
      ctx.arc(left, top, (each.size ?? 3) * devicePixelRatio, 0, 7);
      ctx.fill();
    });
  }
  ctx.restore();
}

/** Fill the range between two lines. */
export function drawBand(u, { x, low, high, name = "agent" }) {
  const { ctx } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
  ctx.clip();
  ctx.beginPath();
  for (let at = 0; at < x.length; at += 1)
    ctx.lineTo(u.valToPos(x[at], "x", true), u.valToPos(low[at] ?? high[at] ?? 0, "y", true));
  for (let at = x.length - 1; at >= 0; at -= 1)
    ctx.lineTo(u.valToPos(x[at], "x", true), u.valToPos(high[at] ?? low[at] ?? 0, "y", true));
  ctx.fillStyle = faded(name, 0.13);
  ctx.fill();
  ctx.restore();
}
