/** Evaluations and promotions take long: the server runs them as tasks, and the page tells how they end. */

import { get, part } from "../core/api.js";
import { fill, h } from "../core/element.js";
import { ago } from "../core/format.js";
import * as live from "../core/live.js";
import { badge, command } from "./basics.js";
import { announce, notice } from "./notices.js";

const OVER = new Set(["done", "failed", "refused", "cancelled"]);
const POLL = 3000; // ms: in case an event was missed

/** Follow a task in a host element until it is over; `done` is then called with it. */
export function follow(host, task, signal, done = () => {}) {
  let isOver = false;
  let timer = 0;
  const take = (now) => {
    if (isOver || now.id !== task.id) return;
    draw(host, now);
    if (!OVER.has(now.status)) return;
    isOver = true;
    clearInterval(timer);
    announce(`${now.kind}: ${now.status}`);
    if (now.status === "done") notice(`${words(now)}: done`);
    done(now);
  };
  live.on("tasks", ({ tasks }) => tasks.forEach(take), signal);
  timer = setInterval(async () => {
    try {
      take(await get(`api/tasks/${part(task.id)}`, {}, signal));
    } catch {
      // The connection says what is wrong with it.
    }
  }, POLL);
  signal.addEventListener("abort", () => clearInterval(timer));
  take(task);
}

const words = (task) =>
  `${task.kind === "promote" ? "Promotion" : "Evaluation"}${task.about ? ` of ${task.about}` : ""}`;

/** What a task says of itself; a promotion's checks, too. */
export function draw(host, task) {
  const checks = task.result?.checks ?? [];
  fill(
    host,
    h(
      "div.card",
      { data: { task: task.status } },
      h("header", h("h2", words(task)), badge(task.status)),
      h(
        "p.anywhere",
        task.message ||
          (task.status === "waiting" ? "It begins when the one before it is over." : `Begun ${ago(task.created)}.`),
      ),
      checks.length ? checkList(checks) : null,
      OVER.has(task.status) ? null : command(task.command),
    ),
  );
}

/** Checks with what was found and what was needed. */
export function checkList(checks) {
  return h(
    "ul.checks",
    checks.map((check) =>
      h(
        "li",
        h("span", { class: check.passed ? "gain" : "loss", "aria-hidden": "true" }, check.passed ? "✓" : "✕"),
        h(
          "span",
          h("b", check.name),
          `: ${check.found}`,
          check.needed ? h("span.muted", ` (needed: ${check.needed})`) : null,
          h("span.unseen", check.passed ? " passed" : " not passed"),
        ),
      ),
    ),
  );
}
