/** Tables of some hundred rows: sorted by their headings, with rows that are changed in place while live. */

import { fill, h } from "../core/element.js";

/**
 * @typedef {object} Column
 * @property {string} key
 * @property {string} name
 * @property {(row: any) => any} show what a cell holds, a text or an element
 * @property {(row: any) => any} [by] what it is sorted by; without it the column is not sorted
 * @property {string} [side] "left" for words
 * @property {string} [title] more about the column
 * @property {string} [class] of its cells
 * @property {boolean} [descendingFirst] whether the first click shows the largest on top
 */

const compare = (a, b) => {
  const isNothing = (value) =>
    value === null || value === undefined || (typeof value === "number" && Number.isNaN(value));
  if (isNothing(a) || isNothing(b)) return Number(isNothing(a)) - Number(isNothing(b));
  return typeof a === "number" && typeof b === "number"
    ? a - b
    : String(a).localeCompare(String(b), "en", { numeric: true });
};

/** Rows in the order of a value, those without one last either way. */
export function ordered(rows, by, isDescending) {
  return rows
    .map((row, place) => ({ row, place, value: by(row) }))
    .sort((a, b) => {
      const found = compare(a.value, b.value);
      const isMissing = (value) => value === null || value === undefined;
      if (found !== 0) return isDescending && !isMissing(a.value) && !isMissing(b.value) ? -found : found;
      return a.place - b.place;
    })
    .map(({ row }) => row);
}

/**
 * A table. `rows` changes what it shows; `changed` is told the order that a reader asks for, where the server sorts.
 * @param {string} label
 * @param {Column[]} columns
 */
export function table(
  label,
  columns,
  { rows = [], sort = null, descending = false, changed = null, identity = null, select = null } = {},
) {
  let shown = rows;
  const order = { key: sort, descending };
  const headings = new Map();
  const body = h("tbody");
  const node = h(
    "div.scroll",
    { tabindex: "0", role: "region", "aria-label": label },
    h(
      "table",
      h(
        "thead",
        h(
          "tr",
          columns.map((column) => {
            const cell = h(
              "th",
              { scope: "col", class: column.side === "left" ? "left" : null, title: column.title },
              column.by || changed
                ? column.by
                  ? h("button", { type: "button", on: { click: () => turn(column) } }, column.name)
                  : column.name
                : column.name,
            );
            headings.set(column.key, cell);
            return cell;
          }),
        ),
      ),
      body,
    ),
  );

  function turn(column) {
    order.descending = order.key === column.key ? !order.descending : Boolean(column.descendingFirst);
    order.key = column.key;
    tell();
    if (changed) changed(order.key, order.descending);
    else draw();
  }

  function tell() {
    for (const [key, cell] of headings) {
      if (key === order.key) cell.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
  }

  function line(row) {
    const made = h(
      "tr",
      columns.map((column, place) =>
        h(
          "td",
          {
            class:
              [column.side === "left" ? "left" : "", column.class ?? (place === 0 ? "name" : "")].join(" ").trim() ||
              null,
          },
          column.show(row),
        ),
      ),
    );
    if (identity) made.dataset.id = identity(row);
    if (select) select(made, row);
    return made;
  }

  function draw() {
    const column = columns.find((each) => each.key === order.key);
    const sorted = changed || !column?.by ? shown : ordered(shown, column.by, order.descending);
    const focused = node.contains(document.activeElement) ? document.activeElement.closest("tr")?.dataset.id : null;
    fill(body, sorted.map(line));
    if (focused)
      body
        .querySelector(`tr[data-id="${CSS.escape(focused)}"] a, tr[data-id="${CSS.escape(focused)}"] input`)
        ?.focus({ preventScroll: true });
  }

  tell();
  draw();
  return {
    node,
    rows(next) {
      shown = next;
      draw();
    },
    /** Change one row in place, if it is shown. */
    row(next) {
      const at = shown.findIndex((row) => identity(row) === identity(next));
      if (at < 0) return false;
      shown[at] = { ...shown[at], ...next };
      const old = body.querySelector(`tr[data-id="${CSS.escape(String(identity(next)))}"]`);
      if (old && !old.contains(document.activeElement)) old.replaceWith(line(shown[at]));
      return true;
    },
  };
}
