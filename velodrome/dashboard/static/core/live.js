/** What the server tells by itself, for the page: who listens hears it while the tab is seen. */

import { address } from "./api.js";
import { Stream } from "./live_worker.js";

const listeners = new Map(); // by name of the event
const last = new Map();
let server = null;
let missed = false;
let port = null;

function call(name, data) {
  for (const listener of listeners.get(name) ?? []) listener(data);
}

function heard(message) {
  if (message.kind === "state") {
    last.set("state", message.state);
    call("state", message.state);
    return;
  }
  const { name, data } = message;
  last.set(name, data);
  if (name === "hello") {
    const isOther = server !== null && server !== data.server;
    server = data.server;
    call("hello", data);
    // Whatever happened between two connections was not heard.
    if (isOther) call("refresh", "restarted");
    return;
  }
  if (name === "resync") {
    call("refresh", data.reason);
    return;
  }
  // A tab that nobody sees costs nothing; it asks again when it is looked at.
  if (document.hidden && name !== "machine") missed = true;
  if (!document.hidden) call(name, data);
}

/**
 * Listen to an event until a signal ends it. Besides the server's own (hello, machine, runs, jobs, studies, tasks,
 * happened, problem): "state" (live or waiting) and "refresh" (something was missed: ask again for what is shown).
 */
export function on(name, listener, signal = undefined) {
  if (signal?.aborted) return;
  if (!listeners.has(name)) listeners.set(name, new Set());
  listeners.get(name).add(listener);
  signal?.addEventListener("abort", () => listeners.get(name).delete(listener));
}

/** The last that was heard of an event. */
export const latest = (name) => last.get(name);

function join() {
  const url = address("api/events").href;
  const alone = () => {
    port = null;
    new Stream(url, heard);
  };
  if (typeof SharedWorker !== "function") return alone();
  try {
    const worker = new SharedWorker(address("static/core/live_worker.js"), { type: "module", name: "velodrome-live" });
    worker.onerror = alone; // a browser that knows no modules there
    port = worker.port;
    port.onmessage = ({ data }) => heard(data);
    port.start();
    port.postMessage({ kind: "join", url });
  } catch {
    alone(); // forbidden here (some private windows): this tab has a connection of its own
  }
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden || !missed) return;
  missed = false;
  call("refresh", "hidden");
});
addEventListener("pagehide", () => port?.postMessage({ kind: "leave" }));
addEventListener("pageshow", (event) => {
  if (!event.persisted) return; // the tab came back as it was left
  port?.postMessage({ kind: "join", url: address("api/events").href });
  call("refresh", "back");
});
join();
