/** All runs: searched, filtered and sorted by the server, so that thousands stay quick. */

import { get, part } from "../core/api.js";
import { fill, freshId, h, settled, write } from "../core/element.js";
import { ago, short, whole } from "../core/format.js";
import * as live from "../core/live.js";
import { badge, bar, choices, empty, foot, head, resultText, runName, select } from "../parts/basics.js";
import { table } from "../parts/table.js";

const PAGE = 100;
const MOST_COMPARED = 8;

export async function show(host, { asked, signal, go, title }) {
  title("Runs");
  const wanted = {
    q: asked.get("q") ?? "",
    status: asked.get("status") ?? "",
    env: asked.get("env") ?? "",
    algorithm: asked.get("algorithm") ?? "",
    study: asked.get("study") ?? "",
    sort: asked.get("sort") ?? "created",
    order: asked.get("order") ?? "desc",
    offset: Number(asked.get("offset") ?? 0) || 0,
    limit: PAGE,
  };
  const chosen = new Map();
  let counted = new Map(); // by run: what its row cannot show without asking again
  const compare = h(
    "button",
    {
      type: "button",
      disabled: true,
      on: { click: () => go(`compare?runs=${[...chosen.keys()].map(part).join(",")}`) },
    },
    "Compare",
  );
  const list = table("Runs", columns(chosen, tellChosen), {
    sort: wanted.sort,
    descending: wanted.order === "desc",
    identity: (run) => run.id,
    changed: (key, descending) => change({ sort: key, order: descending ? "desc" : "asc", offset: 0 }),
  });
  const count = h("p.muted", { role: "status" });
  const filters = h("div.filters");
  const pages = h("div.actions");
  const body = h("section.card", { "aria-label": "Runs" }, filters, count, list.node, pages);
  fill(
    host,
    head(
      "Runs",
      "Everything that was trained here; seeds of one training are one line.",
      compare,
      h("a.button", { href: "new" }, "New training"),
    ),
    body,
    foot(),
  );

  function tellChosen() {
    compare.disabled = chosen.size < 2;
    write(compare, chosen.size ? `Compare ${chosen.size} of up to ${MOST_COMPARED}` : "Compare");
  }

  async function change(next) {
    Object.assign(wanted, next);
    const query = new URLSearchParams(
      Object.entries(wanted).filter(
        ([key, value]) =>
          value !== "" &&
          !["limit"].includes(key) &&
          !(key === "offset" && value === 0) &&
          !(key === "sort" && value === "created") &&
          !(key === "order" && value === "desc"),
      ),
    );
    history.replaceState(null, "", new URL(`runs${query.size ? `?${query}` : ""}`, document.baseURI));
    await load();
  }

  async function load() {
    const found = await get("api/runs", wanted, signal);
    const isFiltered = wanted.q || wanted.status || wanted.env || wanted.algorithm || wanted.study;
    list.node.hidden = found.total === 0;
    drawFilters(found.facets);
    if (found.total === 0 && !isFiltered) {
      fill(
        body,
        empty(
          "No run yet",
          "A run is one training: its settings, its learning curves and what it is worth on data that it never saw.",
          "velodrome train demo",
        ),
      );
      return;
    }
    const to = Math.min(found.total, found.offset + found.runs.length);
    write(
      count,
      found.total === 0
        ? "No run fits. Take a filter away."
        : `${whole(found.offset + 1)} to ${whole(to)} of ${whole(found.total)}`,
    );
    counted = new Map(found.runs.map((run) => [run.id, changes(run)]));
    list.rows(found.runs);
    const turn = (text, offset) =>
      h(
        "button",
        { type: "button", disabled: offset < 0 || offset >= found.total, on: { click: () => change({ offset }) } },
        text,
      );
    fill(pages, found.total > PAGE ? [turn("Previous", found.offset - PAGE), turn("Next", found.offset + PAGE)] : null);
  }

  let drawn = "";
  function drawFilters(facets) {
    const now = JSON.stringify([facets, wanted.status, wanted.env, wanted.algorithm, wanted.study]);
    if (now === drawn || (filters.contains(document.activeElement) && document.activeElement.type === "search")) return;
    drawn = now;
    const id = freshId("search");
    const search = h("input", {
      id,
      type: "search",
      value: wanted.q,
      placeholder: "name or id",
      on: { input: settled(250, () => change({ q: search.value.trim(), offset: 0 })) },
    });
    const options = (name, all) => [
      ["", all],
      ...Object.entries(facets[name] ?? {}).map(([key, number]) => [key, `${key} (${whole(number)})`]),
    ];
    const statuses = [
      ["", "All"],
      ...Object.entries(facets.status ?? {}).map(([key, number]) => [key, `${key} ${whole(number)}`]),
    ];
    fill(
      filters,
      h("div.field", h("label", { for: id }, "Search"), search),
      h(
        "div.field",
        h("span.label", "Status"),
        choices("Status", statuses, wanted.status, (status) => change({ status, offset: 0 })),
      ),
      select("Environment", options("env", "all"), wanted.env, (env) => change({ env, offset: 0 })),
      select("Algorithm", options("algorithm", "all"), wanted.algorithm, (algorithm) =>
        change({ algorithm, offset: 0 }),
      ),
      wanted.study
        ? h(
            "button",
            { type: "button", on: { click: () => change({ study: "", offset: 0 }) } },
            `Study ${wanted.study}: show all`,
          )
        : null,
    );
  }

  await load();
  const soon = settled(600, () => load().catch(() => {}));
  live.on("refresh", soon, signal);
  live.on(
    "runs",
    ({ runs }) => {
      const isKnown = runs.map((run) => list.row(run)).every(Boolean);
      if (!isKnown || runs.some((run) => counted.get(run.id) !== changes(run))) soon();
    },
    signal,
  );
}

/** What the counts, the order and the baselines hang on. */
const changes = (run) => `${run.status} ${run.score}`;

function columns(chosen, tell) {
  const box = (run) => {
    const check = h("input", {
      type: "checkbox",
      checked: chosen.has(run.id),
      "aria-label": `Compare ${run.name} ${run.id}`,
      on: {
        change: () => {
          if (check.checked && chosen.size >= MOST_COMPARED) check.checked = false;
          else if (check.checked) chosen.set(run.id, run.name);
          else chosen.delete(run.id);
          tell();
        },
      },
    });
    return check;
  };
  const progress = (run) => {
    if (run.status !== "running") return h("span.nowrap", short(run.steps));
    const made = bar(`Progress of ${run.name}`, run.total_steps ? run.steps / run.total_steps : 0);
    return h("span.nowrap", short(run.steps), run.total_steps ? ` of ${short(run.total_steps)}` : "", made.node);
  };
  return [
    { key: "choose", name: h("span.unseen", "Compare"), class: "tick", show: box },
    {
      key: "name",
      name: "Run",
      side: "left",
      class: "name",
      by: true,
      show: (run) => runName(run, run.seeds > 1 ? `${run.seeds} seeds` : null),
    },
    { key: "status", name: "Status", side: "left", by: true, show: (run) => badge(run.status) },
    { key: "env", name: "Environment", side: "left", by: true, show: (run) => run.env },
    { key: "algorithm", name: "Algorithm", side: "left", by: true, show: (run) => run.algorithm },
    { key: "steps", name: "Steps", by: true, descendingFirst: true, show: progress },
    { key: "result", name: "Out of sample", by: true, descendingFirst: true, show: (run) => resultText(run.result)[0] },
    { key: "baseline", name: "Baseline", show: (run) => h("span.nowrap", resultText(run.result)[1]) },
    {
      key: "created",
      name: "Begun",
      by: true,
      descendingFirst: true,
      show: (run) => h("span.nowrap", ago(run.created)),
    },
  ];
}
