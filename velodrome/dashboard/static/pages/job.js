/** One job: what happened to it, attempt by attempt, and its log. */

import { get, part } from "../core/api.js";
import { fill, h, settled } from "../core/element.js";
import { NOTHING, bytes, moment, whole } from "../core/format.js";
import * as live from "../core/live.js";
import { badge, bar, card, facts, foot, head, warnings } from "../parts/basics.js";
import { jobButtons } from "./jobs.js";
import { logOf } from "./run/log.js";

/** What happened, in words: "submitted by me", "ended: finished". */
const sentence = ({ kind, text }) => (!text ? kind : text.startsWith("by ") ? `${kind} ${text}` : `${kind}: ${text}`);

export async function show(host, { parts, signal, title }) {
  const path = `api/jobs/${part(parts.id)}`;
  const top = h("div.stack");
  const body = h("div.columns");
  const log = logOf(`${path}/log`, { id: parts.id }, signal);

  async function load() {
    const job = await get(path, {}, signal);
    title(job.name);
    fill(
      top,
      head(
        job.name,
        [badge(job.status, job.shown || job.status), job.message ? ` · ${job.message}` : ""],
        jobButtons(job, load),
        !job.has_run ? null : h("a.button", { href: `runs/${part(job.id)}` }, "Its run"),
      ),
      job.status === "failed" ? warnings([job.message || "It failed; its log says why."]) : null,
      bar(`Progress of ${job.name}`, job.total_steps ? job.steps / job.total_steps : 0).node,
    );
    fill(
      body,
      card(
        "About",
        {},
        facts([
          ["Steps", `${whole(job.steps)} of ${whole(job.total_steps)}`],
          ["Priority", String(job.priority)],
          ["Attempt", String(job.attempt)],
          ["Owner", job.owner],
          [
            "Study",
            job.study ? h("a", { href: `studies/${part(job.study_name ?? job.study)}` }, `${job.study_name ?? job.study}, trial ${job.trial}`) : null,
          ],
          ["Cores", String(job.cores)],
          ["Environments", job.envs === null ? null : whole(job.envs)],
          [
            "Memory",
            job.memory_used
              ? `${bytes(job.memory_used)} used${job.memory ? ` of ${bytes(job.memory)}` : ""}`
              : job.memory
                ? bytes(job.memory)
                : NOTHING,
          ],
          ["Submitted", moment(job.created)],
          ["Begun", job.started ? moment(job.started) : null],
        ]),
      ),
      card(
        "What happened",
        {},
        job.events.length
          ? h(
              "ol.timeline",
              job.events.map((event) =>
                h(
                  "li",
                  h("div", sentence(event)),
                  h(
                    "div.small.muted",
                    `${moment(event.time)}${event.attempt > 1 ? ` · attempt ${event.attempt}` : ""}`,
                  ),
                ),
              ),
            )
          : h("p.muted", "Nothing yet."),
      ),
    );
  }

  await load();
  fill(host, top, body, log, foot());
  const soon = settled(300, () => load().catch(() => {}));
  live.on("refresh", soon, signal);
  live.on("jobs", ({ jobs }) => jobs.some((job) => job.id === parts.id) && soon(), signal);
}
