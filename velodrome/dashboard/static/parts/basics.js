/** Small parts of pages: cards, tiles, badges, bars, commands to copy, empty states and failures. */

import { part } from "../core/api.js";
import { fill, freshId, h, write } from "../core/element.js";
import { NOTHING, figure, percent } from "../core/format.js";
import { announce, notice } from "./notices.js";

/** The top of a page: its title, a line about it, what can be done. */
export function head(title, about = null, ...actions) {
  return h(
    "div.head",
    h("div", h("h1", title), about === null ? null : h("p", about)),
    actions.length ? h("div.actions", actions) : null,
  );
}

/** A titled part of a page. */
export function card(title, { about = null, actions = [], level = "h2" } = {}, ...body) {
  const id = freshId("card");
  return h(
    "section.card",
    { "aria-labelledby": id },
    h("header", h("div", h(level, { id }, title), about === null ? null : h("p", about)), actions),
    body,
  );
}

/** A card of sentences; nothing where there are none. */
export function notesCard(notes) {
  if (!notes?.length) return null;
  const items = notes.map((note) => h("li", note));
  return card("Notes", {}, h("ul.plain", items));
}

/** A figure with its name; `set` changes it without moving anything. */
export function tile(name, { meter = false } = {}) {
  const value = h("div.figure", NOTHING);
  const beside = h("div.beside");
  const filled = h("span");
  const line = meter ? h("div.meter", { "aria-hidden": "true" }, filled) : null;
  const node = h("div.tile", h("div.name", name), value, beside, line);
  return {
    node,
    set(text, more = "", share = null) {
      write(value, text);
      write(beside, more);
      if (!line) return;
      filled.style.width = `${Math.min(100, Math.max(0, (share ?? 0) * 100))}%`;
      line.dataset.high = String((share ?? 0) > 0.92);
    },
  };
}

/** The tiles of an object, side by side. */
export function tileRow(made) {
  return h(
    "div.tiles",
    Object.values(made).map((each) => each.node),
  );
}

/** Tiles with what they show: [[name, text, more], …]. */
export function tiles(rows) {
  return h(
    "div.tiles",
    rows.map(([name, text, more]) => {
      const made = tile(name);
      made.set(text, more ?? "");
      return made.node;
    }),
  );
}

const SIGNS = {
  running: "●",
  finished: "✓",
  complete: "✓",
  done: "✓",
  waiting: "○",
  paused: "‖",
  interrupted: "‖",
  failed: "✕",
  killed: "✕",
  refused: "✕",
  cancelled: "–",
  pruned: "–",
};

/** A status, told by a sign and a word, and only then by colour. */
export function badge(status, words = null) {
  return h(
    "span.badge",
    { data: { status } },
    h("span.sign", { "aria-hidden": "true" }, SIGNS[status] ?? "·"),
    words ?? status,
  );
}

/** A bar of progress; `set` moves it. */
export function bar(label, share = 0) {
  const filled = h("span");
  const node = h(
    "span.bar",
    { role: "progressbar", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100" },
    filled,
  );
  const set = (told) => {
    const at = Math.min(1, Math.max(0, Number.isFinite(told) ? told : 0));
    filled.style.width = `${at * 100}%`;
    node.setAttribute("aria-valuenow", String(Math.round(at * 100)));
  };
  set(share);
  return { node, set };
}

/** A command in one line, with a button that copies it. */
export function command(text) {
  const code = h("code", { tabindex: "0", role: "region", "aria-label": "Command" }, text);
  const copy = h("button", { type: "button", "aria-label": "Copy the command" }, "Copy");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      announce("Copied");
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    } catch {
      // Pages that are not served from this machine or by https may not: mark it, so that a key press does.
      getSelection().selectAllChildren(code);
      notice("The browser does not let this page copy. The command is marked: press Ctrl+C.");
    }
  });
  return h("div.command", code, copy);
}

/** What to do where there is nothing yet. */
export function empty(title, text, line = null, level = "h2") {
  return h("div.empty", h(level, title), h("p", text), line === null ? null : command(line));
}

/** What went wrong, and a button that tries again. */
export function failure(error, again = null) {
  return h(
    "div.failure",
    { role: "alert" },
    h("p", error.message || String(error)),
    again && h("button", { type: "button", on: { click: () => again() } }, "Try again"),
  );
}

/** Facts as terms and what is said of them; pairs without anything to say are left out. */
export function facts(pairs) {
  const told = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h(
    "dl.facts",
    told.map(([name, value]) => [h("dt", name), h("dd", value)]),
  );
}

/** Warnings in a frame, nothing if there are none. */
export function warnings(texts) {
  if (!texts?.length) return null;
  return h(
    "div.warnings",
    texts.length === 1
      ? texts[0]
      : h(
          "ul",
          texts.map((text) => h("li", text)),
        ),
  );
}

/** A few choices of which one holds; `change` is called with its key. */
export function choices(label, options, chosen, change) {
  const buttons = options.map(([key, text]) =>
    h(
      "button",
      { type: "button", "aria-pressed": String(key === chosen), data: { key }, on: { click: () => choose(key) } },
      text,
    ),
  );
  const choose = (key) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.key === String(key)));
    change(key);
  };
  return h("div.choices", { role: "group", "aria-label": label }, buttons);
}

/** A list to choose from, with its label above it. */
export function select(label, options, chosen, change) {
  const id = freshId("select");
  const box = h(
    "select",
    { id, on: { change: () => change(box.value) } },
    options.map(([key, text]) => h("option", { value: key }, text)),
  );
  box.value = chosen;
  return h("div.field", h("label", { for: id }, label), box);
}

/** A number with its sign and its colour; the sign says it, too. */
export function change(value, kind = "change") {
  if (value === null || value === undefined) return NOTHING;
  return h("span", { class: value > 0 ? "gain" : value < 0 ? "loss" : null }, figure(value, kind));
}

/** A value of a run's result as its figure is written. */
export function resultFigure(result, value) {
  if (!result || value === null || value === undefined) return NOTHING;
  return result.metric === "return" ? percent(value, 2, true) : figure(value);
}

/** A result of a run, and its baseline in words, for one line of a table. */
export function resultText(result) {
  const { baseline } = result ?? {};
  return [
    resultFigure(result, result?.value),
    baseline ? `${baseline.label} ${resultFigure(result, baseline.value)}` : NOTHING,
  ];
}

/** What a run is worth on the block that it left out as a fold. */
export const heldOut = (found) =>
  found
    ? h(
        "span.sub",
        { title: "the block that this fold left out: settings are chosen by it" },
        `held out ${resultFigure(found, found.value)}, no test`,
      )
    : null;

/** The name of a run in a table, and what tells it from others of that name. */
export function runName(run, ...more) {
  const under = [run.id, ...more].filter(Boolean).join(" · ");
  return [h("a", { href: `runs/${part(run.id)}` }, run.name), h("span.sub", under), heldOut(run.held_out)];
}

/** The foot of a page: whose work draws the charts. */
export function foot() {
  return h(
    "footer.foot",
    "Charts: uPlot (MIT) and TradingView Lightweight Charts™, © TradingView, Inc. (Apache 2.0), ",
    h("a", { href: "https://www.tradingview.com/", rel: "noreferrer noopener", target: "_blank" }, "tradingview.com"),
  );
}

/** Tabs: keys arrows, Home and End; `panels` is [[key, name, make], …], each made when it is first looked at. */
export function tabs(label, panels, chosen, remember = () => {}) {
  const body = h("div.stack", { role: "tabpanel", tabindex: "-1" });
  const made = new Map();
  const buttons = panels.map(([key, name]) =>
    h("button", { type: "button", role: "tab", data: { key }, on: { click: () => choose(key, true) } }, name),
  );
  const choose = (key, told = false) => {
    for (const button of buttons) {
      const isIt = button.dataset.key === key;
      button.setAttribute("aria-selected", String(isIt));
      button.tabIndex = isIt ? 0 : -1;
      if (isIt) body.setAttribute("aria-label", button.textContent);
    }
    if (!made.has(key)) made.set(key, panels.find((panel) => panel[0] === key)[2]());
    fill(body, made.get(key));
    if (told) remember(key);
  };
  const list = h(
    "div.tabs",
    {
      role: "tablist",
      "aria-label": label,
      on: {
        keydown: (event) => {
          const at = buttons.indexOf(document.activeElement);
          const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
          if (at < 0 || to === undefined) return;
          event.preventDefault();
          const next = buttons[(to + buttons.length) % buttons.length];
          next.focus();
          choose(next.dataset.key, true);
        },
      },
    },
    buttons,
  );
  choose(panels.some(([key]) => key === chosen) ? chosen : panels[0][0]);
  return { node: h("div.stack", list, body), choose, forget: (key) => made.delete(key) };
}
