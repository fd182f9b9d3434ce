/** Bars without axes: importances and shares, with their figures beside them. */

import { h } from "../core/element.js";
import { figure, percent, whole } from "../core/format.js";
import { colourName } from "./palette.js";

/** Rows of [label, share of the longest, text], drawn as horizontal bars. */
export function bars(label, rows) {
  return h(
    "div.hbars",
    { role: "list", "aria-label": label },
    rows.map(([name, share, text]) => {
      const filled = h("span");
      filled.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
      return [
        h("span.label", { role: "listitem" }, name),
        h("span.track", { "aria-hidden": "true" }, filled),
        h("span.value", text),
      ];
    }),
  );
}

/** How many fall between which edges, as columns. */
export function histogram(label, edges, counts) {
  const most = Math.max(...counts, 1);
  const all = counts.reduce((sum, count) => sum + count, 0);
  const told = `${label}: ${whole(all)} between ${figure(edges[0])} and ${figure(edges[edges.length - 1])}`;
  return h(
    "div.stack",
    h(
      "div.histogram",
      { role: "img", "aria-label": told },
      counts.map((count, at) => {
        const column = h("span", { title: `${figure(edges[at])} to ${figure(edges[at + 1])}: ${whole(count)}` });
        column.style.height = `${(count / most) * 100}%`;
        return column;
      }),
    ),
    h(
      "div.histogram-ends",
      h("span", figure(edges[0])),
      h("span", `most: ${whole(most)}`),
      h("span", figure(edges[edges.length - 1])),
    ),
  );
}

/** Parts of a whole in one strip; `set` changes the shares. */
export function shares(label, names) {
  const strip = h("div.strip", { "aria-hidden": "true" });
  const parts = names.map((name, place) => {
    const piece = h("span");
    piece.style.background = `var(--${colourName(place)})`;
    strip.append(piece);
    const dot = h("span.sample", { "aria-hidden": "true" });
    dot.style.background = `var(--${colourName(place)})`;
    const read = h("span.read");
    return { piece, read, item: h("li", dot, name, read) };
  });
  return {
    node: h(
      "div.shares",
      { role: "group", "aria-label": label },
      strip,
      h(
        "ul.legend",
        parts.map(({ item }) => item),
      ),
    ),
    set(values) {
      parts.forEach(({ piece, read }, place) => {
        piece.style.flex = `${Math.max(0, values[place] ?? 0)} 0 0`;
        read.textContent = percent(values[place], 1);
      });
    },
  };
}
