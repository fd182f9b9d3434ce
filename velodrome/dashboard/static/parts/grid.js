/**
 * A table of thousands of rows and hundreds of columns. Only the cells in sight exist; every row is as high and every
 * column as wide as it was told, so that nothing jumps while it is scrolled.
 */

import { fill, h, write } from "../core/element.js";
import { announce } from "./notices.js";

const ROW = 32; // px, as in parts.css
const TALLEST = 460; // px
const BEYOND = 6; // rows and columns that are made beyond the edge

/**
 * @typedef {object} GridColumn
 * @property {string} key
 * @property {string} name
 * @property {number} width px
 * @property {(row: number) => string} text of a cell, by the number of the row in the data
 * @property {(row: number) => any} value what it is sorted by
 * @property {boolean} [left] words rather than numbers
 * @property {(row: number) => string | null} [link] where its text leads
 */

/**
 * @param {string} label
 * @param {GridColumn[]} columns the first one stays in sight
 * @param {{open?: (row: number) => void, sort?: string, descending?: boolean}} options
 */
export function grid(label, columns, { open = () => {}, sort = null, descending = false } = {}) {
  let rows = []; // numbers of rows, in the order shown
  let all = [];
  let selected = -1;
  const order = { key: sort, descending };
  const starts = [];
  let wide = 0;
  for (const column of columns) {
    starts.push(wide);
    wide += column.width;
  }
  const headRow = h("div.grid-head", { role: "row", "aria-rowindex": "1" });
  const body = h("div.grid-body", { role: "rowgroup" });
  const frame = h(
    "div.grid-frame",
    { role: "grid", tabindex: "0", "aria-label": label, "aria-colcount": String(columns.length) },
    headRow,
    body,
  );
  const made = new Map(); // row elements by place
  let drawn = "";

  headRow.style.width = body.style.width = `${wide}px`;

  function cell(column, place, role) {
    const node = h("div.grid-cell", { role, class: column.left ? "left" : null, "aria-colindex": String(place + 1) });
    node.style.left = `${starts[place]}px`;
    node.style.width = `${column.width}px`;
    return node;
  }

  function columnsInSight() {
    const from = frame.scrollLeft;
    const to = from + frame.clientWidth;
    let first = 0;
    while (first < columns.length - 1 && starts[first] + columns[first].width < from) first += 1;
    let last = first;
    while (last < columns.length - 1 && starts[last + 1] < to) last += 1;
    return [Math.max(0, first - BEYOND), Math.min(columns.length - 1, last + BEYOND)];
  }

  function drawHead(first, last) {
    const held = document.activeElement?.closest?.(".grid-head button")?.dataset.key;
    fill(
      headRow,
      ...columns.slice(first, last + 1).map((column, offset) => {
        const node = cell(column, first + offset, "columnheader");
        if (column.key === order.key) node.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
        const arrow = column.key === order.key ? (order.descending ? " ↓" : " ↑") : "";
        node.append(
          h(
            "button",
            { type: "button", title: column.name, data: { key: column.key }, on: { click: () => turn(column.key) } },
            column.name + arrow,
          ),
        );
        return node;
      }),
    );
    if (held) headRow.querySelector(`button[data-key="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
  }

  function makeRow(place, first, last) {
    const row = rows[place];
    const node = h("div.grid-row", {
      role: "row",
      "aria-rowindex": String(place + 2),
      "aria-selected": String(row === selected),
    });
    node.style.top = `${place * ROW}px`;
    node.style.width = `${wide}px`;
    for (let at = first; at <= last; at += 1) {
      const column = columns[at];
      const part = cell(column, at, "gridcell");
      const target = column.link?.(row);
      if (target) part.append(h("a", { href: target, tabindex: "-1" }, column.text(row)));
      else write(part, column.text(row));
      node.append(part);
    }
    node.addEventListener("click", (event) => {
      if (!event.target.closest("a")) choose(place);
    });
    return node;
  }

  function draw(force = false) {
    const top = Math.max(0, Math.floor((frame.scrollTop - ROW) / ROW) - BEYOND);
    const bottom = Math.min(rows.length - 1, Math.ceil((frame.scrollTop + frame.clientHeight) / ROW) + BEYOND);
    const [first, last] = columnsInSight();
    const now = `${first}/${last}`;
    if (force || now !== drawn) {
      drawHead(first, last);
      for (const node of made.values()) node.remove();
      made.clear();
      drawn = now;
    }
    for (const [place, node] of made) {
      if (place >= top && place <= bottom) continue;
      node.remove();
      made.delete(place);
    }
    const fresh = document.createDocumentFragment();
    for (let place = top; place <= bottom; place += 1) {
      if (made.has(place)) continue;
      const node = makeRow(place, first, last);
      made.set(place, node);
      fresh.append(node);
    }
    body.append(fresh);
  }

  function arrange() {
    const column = columns.find((each) => each.key === order.key);
    rows = all.slice();
    if (column) {
      const values = new Map(rows.map((row) => [row, column.value(row)]));
      const isNothing = (value) => value === null || value === undefined || value === "" || Number.isNaN(value);
      rows.sort((a, b) => {
        const [x, y] = [values.get(a), values.get(b)];
        if (isNothing(x) || isNothing(y)) return Number(isNothing(x)) - Number(isNothing(y)) || a - b;
        const found =
          typeof x === "number" && typeof y === "number"
            ? x - y
            : String(x).localeCompare(String(y), "en", { numeric: true });
        return (order.descending ? -found : found) || a - b;
      });
    }
    body.style.height = `${rows.length * ROW}px`;
    frame.style.height = `${Math.min(TALLEST, (all.length + 1) * ROW + 18)}px`;
    frame.setAttribute("aria-rowcount", String(rows.length + 1));
    draw(true);
  }

  function turn(key) {
    order.descending = order.key === key ? !order.descending : true;
    order.key = key;
    arrange();
    announce(
      `Sorted by ${columns.find((each) => each.key === key).name}, ${order.descending ? "descending" : "ascending"}`,
    );
  }

  function choose(place) {
    selected = rows[place];
    const top = ROW + place * ROW;
    if (top < frame.scrollTop + ROW) frame.scrollTop = top - ROW;
    else if (top + ROW > frame.scrollTop + frame.clientHeight) frame.scrollTop = top + ROW - frame.clientHeight;
    draw(true);
    open(selected);
  }

  frame.addEventListener("scroll", () => requestAnimationFrame(() => draw()), { passive: true });
  new ResizeObserver(() => draw()).observe(frame);
  frame.addEventListener("keydown", (event) => {
    if (event.target !== frame) return;
    const at = rows.indexOf(selected);
    const page = Math.floor(frame.clientHeight / ROW) - 2;
    const to = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: rows.length - 1,
    }[event.key];
    if (event.key === "ArrowRight" || event.key === "ArrowLeft")
      frame.scrollLeft += event.key === "ArrowRight" ? 120 : -120;
    else if (to !== undefined && rows.length) choose(Math.min(rows.length - 1, Math.max(0, to)));
    else if (event.key === "Enter" && selected >= 0) made.get(at)?.querySelector("a")?.click();
    else return;
    event.preventDefault();
  });
  return {
    node: frame,
    /** Show these rows of the data, in the order that was asked for. */
    rows(numbers) {
      all = numbers;
      arrange();
    },
    refresh: () => draw(true),
  };
}
