/** The queue: what waits, runs, is paused or failed, and what can be done about it. */

import { get, part, post } from "../core/api.js";
import { fill, h, settled, write } from "../core/element.js";
import { NOTHING, ago, bytes, short, whole } from "../core/format.js";
import * as live from "../core/live.js";
import { badge, bar, choices, empty, foot, head } from "../parts/basics.js";
import { carryOut, question } from "../parts/notices.js";
import { table } from "../parts/table.js";

const PAGE = 100;
const VERBS = { pause: "Pause", resume: "Resume", cancel: "Cancel" };

/** Buttons of what can be done with a job now. */
export function jobButtons(job, changed) {
  return h(
    "span.actions.row",
    job.actions
      .filter((verb) => verb in VERBS)
      .map((verb) =>
        h(
          "button",
          {
            type: "button",
            class: verb === "cancel" ? "danger" : null,
            "aria-label": `${VERBS[verb]} ${job.name}`,
            on: {
              click: (event) =>
                carryOut(event.currentTarget, async () => {
                  if (
                    verb === "cancel" &&
                    !(await question(
                      `Cancel ${job.name}?`,
                      "It stops after its last checkpoint and leaves the queue. What it has learned so far is kept.",
                      { yes: "Cancel the training", danger: true },
                    ))
                  )
                    return;
                  changed((await post(`api/jobs/${part(job.id)}/${verb}`)).job);
                }),
            },
          },
          VERBS[verb],
        ),
      ),
  );
}

export async function show(host, { asked, signal, title }) {
  title("Queue");
  const wanted = { status: asked.get("status") ?? "", offset: Number(asked.get("offset") ?? 0) || 0, limit: PAGE };
  let statuses = new Map(); // by job, as they were counted
  const count = h("p.muted", { role: "status" });
  const filters = h("div.filters");
  const pages = h("div.actions");
  const list = table(
    "Jobs",
    [
      {
        key: "name",
        name: "Job",
        side: "left",
        show: (job) => [
          h("a", { href: `jobs/${part(job.id)}` }, job.name),
          job.study ? h("span.small.muted", ` study ${job.study_name ?? job.study}, trial ${job.trial}`) : null,
        ],
      },
      { key: "status", name: "Status", side: "left", show: (job) => badge(job.status, job.shown || job.status) },
      {
        key: "steps",
        name: "Steps",
        show: (job) =>
          h(
            "span.nowrap",
            short(job.steps),
            job.total_steps ? ` of ${short(job.total_steps)}` : "",
            job.status === "running"
              ? bar(`Progress of ${job.name}`, job.total_steps ? job.steps / job.total_steps : 0).node
              : null,
          ),
      },
      { key: "priority", name: "Priority", show: (job) => String(job.priority) },
      {
        key: "needs",
        name: "Needs",
        side: "left",
        show: (job) =>
          h(
            "span.nowrap",
            `${job.cores} core${job.cores === 1 ? "" : "s"}, ${job.memory ? bytes(job.memory) : "memory as it comes"}`,
          ),
      },
      { key: "owner", name: "Owner", side: "left", show: (job) => job.owner || NOTHING },
      { key: "created", name: "Submitted", show: (job) => h("span.nowrap", ago(job.created)) },
      { key: "actions", name: h("span.unseen", "Actions"), show: (job) => jobButtons(job, (next) => list.row(next)) },
    ],
    { identity: (job) => job.id },
  );
  const body = h("section.card", { "aria-label": "Jobs" }, filters, count, list.node, pages);
  fill(
    host,
    head(
      "Queue",
      "Trainings that were submitted. The service carries them out within what the machine has.",
      h("a.button", { href: "new" }, "New training"),
    ),
    body,
    foot(),
  );

  /** Show others, and note which in the address, to which one may come back. */
  async function change(next) {
    Object.assign(wanted, next);
    const told = ["status", "offset"].filter((key) => wanted[key]).map((key) => [key, wanted[key]]);
    const query = new URLSearchParams(told);
    history.replaceState(null, "", new URL(`jobs${query.size ? `?${query}` : ""}`, document.baseURI));
    await load();
  }

  async function load() {
    const found = await get("api/jobs", wanted, signal);
    if (found.total && !found.jobs.length) return void (await change({ offset: 0 })); // there are fewer by now
    const all = Object.values(found.counts).reduce((sum, number) => sum + number, 0);
    if (!all)
      return void fill(
        body,
        empty(
          "Nothing was submitted yet",
          "Trainings in the queue run one after the other, or several at once where there is room.",
          "velodrome submit demo",
        ),
      );
    fill(
      filters,
      choices(
        "Status",
        [
          ["", `All ${whole(all)}`],
          ...Object.entries(found.counts).map(([key, number]) => [key, `${key} ${whole(number)}`]),
        ],
        wanted.status,
        (status) => change({ status, offset: 0 }),
      ),
    );
    write(
      count,
      found.total
        ? `${whole(wanted.offset + 1)} to ${whole(wanted.offset + found.jobs.length)} of ${whole(found.total)}`
        : "No job has this status.",
    );
    statuses = new Map(found.jobs.map((job) => [job.id, job.status]));
    list.rows(found.jobs);
    const turn = (text, offset) =>
      h(
        "button",
        {
          type: "button",
          disabled: offset < 0 || offset >= found.total,
          on: { click: () => change({ offset }) },
        },
        text,
      );
    fill(
      pages,
      found.total > PAGE ? [turn("Previous", wanted.offset - PAGE), turn("Next", wanted.offset + PAGE)] : null,
    );
  }

  await load();
  const soon = settled(700, () => !filters.contains(document.activeElement) && load().catch(() => {}));
  live.on("refresh", soon, signal);
  live.on(
    "jobs",
    ({ jobs }) => {
      const isKnown = jobs.map((job) => list.row(job)).every(Boolean);
      if (!isKnown || jobs.some((job) => statuses.get(job.id) !== job.status)) soon();
    },
    signal,
  );
}
