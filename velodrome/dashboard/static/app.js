/** The frame around the pages: which address is which page, the links to them, the connection, and errors. */

import { get, isLeaving } from "./core/api.js";
import { fill, focusOn, h, write } from "./core/element.js";
import * as live from "./core/live.js";
import { themeButton } from "./core/theme.js";
import { announce } from "./parts/notices.js";
import { failure } from "./parts/basics.js";

/** Path, module, entry of the navigation that it belongs to. Parts in braces are given to the page. */
const ROUTES = [
  ["", "overview", "overview"],
  ["runs", "runs", "runs"],
  ["runs/{id}", "run", "runs"],
  ["compare", "compare", "compare"],
  ["jobs", "jobs", "jobs"],
  ["jobs/{id}", "job", "jobs"],
  ["studies", "studies", "studies"],
  ["studies/{name}", "study", "studies"],
  ["populations/{name}", "population", "studies"],
  ["champions", "champions", "champions"],
  ["champions/{name}", "champion", "champions"],
  ["data", "data", "data"],
  ["data/{id}", "market", "data"],
  ["benchmarks", "benchmarks", "benchmarks"],
  ["benchmarks/{id}", "benchmark", "benchmarks"],
  ["new", "new_training", "new"],
];
const NAVIGATION = [
  ["overview", "", "Overview"],
  ["runs", "runs", "Runs"],
  ["compare", "compare", "Compare"],
  ["jobs", "jobs", "Queue"],
  ["studies", "studies", "Studies"],
  ["champions", "champions", "Champions"],
  ["data", "data", "Data"],
  ["benchmarks", "benchmarks", "Benchmarks"],
  ["new", "new", "New training"],
];
const content = document.getElementById("content");
const navigation = document.getElementById("navigation");
const links = new Map();
let leaving = new AbortController();
const missed = new Set(); // modules that were asked for while the server was away
let shown = 0; // counts pages, so that a slow one that was left does not appear over the next

/** The page of an address: its module, its parts and what it is asked; null if no page has it. */
function pageOf(location) {
  const base = new URL(document.baseURI).pathname;
  const path = location.pathname.startsWith(base) ? location.pathname.slice(base.length) : location.pathname;
  const found = path.replace(/\/+$/, "").split("/");
  for (const [pattern, module, entry] of ROUTES) {
    const wanted = pattern.split("/");
    if (wanted.length !== found.length) continue;
    const parts = {};
    const fits = wanted.every((name, place) => {
      if (!name.startsWith("{")) return name === found[place];
      try {
        parts[name.slice(1, -1)] = decodeURIComponent(found[place]);
      } catch {
        return false;
      }
      return found[place] !== "";
    });
    if (fits) return { module, entry, parts, asked: new URLSearchParams(location.search) };
  }
  return null;
}

/** The module of a page; an error says that the server is away, if that is why there is none. */
async function moduleOf(name, signal) {
  try {
    return await import(`./pages/${name}.js`);
  } catch (error) {
    await get("api/whoami", {}, signal).catch((away) => {
      missed.add(name);
      throw away;
    });
    if (!missed.has(name)) throw error;
    location.reload(); // browsers may remember that a module could not be had
    return new Promise(() => {});
  }
}

/** Show the page of the browser's address. */
async function show({ keepPlace = false } = {}) {
  leaving.abort();
  leaving = new AbortController();
  const signal = leaving.signal;
  shown += 1;
  const number = shown;
  const page = pageOf(location);
  for (const [entry, link] of links) {
    if (entry !== page?.entry) link.removeAttribute("aria-current");
    else {
      link.setAttribute("aria-current", "page");
      navigation.scrollLeft = link.offsetLeft - 60; // on a phone the links scroll sideways
    }
  }
  const host = h("div.page");
  const waiting = setTimeout(() => content.setAttribute("aria-busy", "true"), 150);
  const context = { ...page, signal, go, title: (text) => title(text), again: () => show({ keepPlace: true }) };
  try {
    if (page === null) await notFound(host);
    else {
      const module = await moduleOf(page.module, signal);
      await module.show(host, context);
    }
  } catch (error) {
    if (signal.aborted || isLeaving(error)) return;
    title("Something went wrong");
    fill(
      host,
      h("h1", error.status === 404 ? "Not found" : "This page could not be shown"),
      failure(error, () => show()),
    );
    // Once the server answers again, so does the page.
    if (error.status === 0) live.on("hello", () => show(), signal);
    else if (error.status === undefined) console.error(error);
  } finally {
    clearTimeout(waiting);
    if (number === shown) content.removeAttribute("aria-busy");
  }
  if (signal.aborted || number !== shown) return;
  fill(content, host);
  content.dataset.page = page?.module ?? "none";
  content.dataset.ready = String(number);
  if (!keepPlace) scrollTo(0, 0);
}

function title(text) {
  document.title = text ? `${text} · Velodrome` : "Velodrome";
}

async function notFound(host) {
  title("Not found");
  fill(
    host,
    h("h1", "No such page"),
    h(
      "p",
      "The address ",
      h("code", location.pathname),
      " belongs to no page. ",
      h("a", { href: "." }, "To the overview"),
    ),
  );
}

/** Go to a page of the dashboard, such as "runs/1a2b". */
export async function go(path, { replace = false, keepPlace = false } = {}) {
  const target = new URL(path, document.baseURI);
  if (replace) history.replaceState(null, "", target);
  else history.pushState(null, "", target);
  await show({ keepPlace });
  if (!keepPlace) {
    const heading = content.querySelector("h1");
    if (heading) focusOn(heading);
    announce(document.title.replace(" · Velodrome", ""));
  }
}

function isOurs(link) {
  const base = new URL(document.baseURI);
  if (link.origin !== base.origin || link.target || link.hasAttribute("download")) return false;
  const path = link.pathname.slice(base.pathname.length);
  return link.pathname.startsWith(base.pathname) && !path.startsWith("api/") && !path.startsWith("static/");
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (
    !link ||
    event.defaultPrevented ||
    event.button !== 0 ||
    event.metaKey ||
    event.ctrlKey ||
    event.shiftKey ||
    event.altKey
  )
    return;
  if (!isOurs(link)) return;
  event.preventDefault();
  go(link.href);
});
addEventListener("popstate", () => show());

for (const [entry, path, text] of NAVIGATION) {
  const link = h("a", { href: path || ".", class: entry === "new" ? "call" : null }, text);
  links.set(entry, link);
  navigation.append(link);
}
document.getElementById("skip").addEventListener("click", () => focusOn(content));
themeButton(document.getElementById("theme"));

const connection = document.getElementById("connection");
const connectionText = document.getElementById("connection-text");
live.on("state", (state) => {
  const wasLive = connection.dataset.state === "live";
  connection.dataset.state = state;
  write(connectionText, state === "live" ? "Live" : wasLive || connection.dataset.lost ? "Reconnecting" : "Connecting");
  if (wasLive && state !== "live") {
    connection.dataset.lost = "true";
    announce("The connection to the server is lost; trying again");
  } else if (state === "live" && connection.dataset.lost) {
    delete connection.dataset.lost;
    announce("Connected again");
  }
});
// What is shown may be old while the server cannot read its store; an empty message says that it can again.
live.on("problem", ({ message }) => {
  connection.title = message;
  write(connectionText, message ? "Not up to date" : "Live");
  announce(message || "Up to date again");
});
show();
