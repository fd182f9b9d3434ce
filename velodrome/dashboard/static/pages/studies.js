/** All studies: how far they are, how fast, what is best so far. */

import { get, part } from "../core/api.js";
import { fill, h, settled } from "../core/element.js";
import { NOTHING, ago, duration, figure, short, whole } from "../core/format.js";
import * as live from "../core/live.js";
import { badge, bar, card, empty, foot, head } from "../parts/basics.js";
import { table } from "../parts/table.js";

export async function show(host, { signal, title }) {
  title("Studies");
  const list = table(
    "Studies",
    [
      {
        key: "name",
        name: "Study",
        side: "left",
        by: (study) => study.name,
        show: (study) => h("a", { href: `studies/${part(study.name)}` }, study.name),
      },
      {
        key: "status",
        name: "Status",
        side: "left",
        by: (study) => study.status,
        show: (study) => badge(study.status, study.phase && study.status === "running" ? study.phase : study.status),
      },
      {
        key: "progress",
        name: "Trials",
        by: (study) => study.over,
        show: (study) =>
          h(
            "span.nowrap",
            `${whole(study.over)} of ${study.wanted ? whole(study.wanted) : NOTHING}`,
            bar(`Progress of ${study.name}`, study.wanted ? study.over / study.wanted : 0).node,
          ),
      },
      {
        key: "rate",
        name: "Per hour",
        by: (study) => study.trials_per_hour,
        show: (study) => short(study.trials_per_hour),
      },
      {
        key: "left",
        name: "Time left",
        by: (study) => study.seconds_left,
        show: (study) => h("span.nowrap", study.status === "running" ? duration(study.seconds_left) : NOTHING),
      },
      {
        key: "best",
        name: "Best so far",
        show: (study) => (study.best ? h("span.nowrap", `${study.best.text} (trial ${study.best.number})`) : NOTHING),
      },
      { key: "score", name: "Score", side: "left", show: (study) => study.score },
      {
        key: "updated",
        name: "Last change",
        by: (study) => study.updated,
        descendingFirst: true,
        show: (study) => h("span.nowrap", ago(study.updated)),
      },
    ],
    { identity: (study) => study.name, sort: "updated", descending: true },
  );
  const body = h("div");
  const load = async () => {
    const { studies } = await get("api/studies", {}, signal);
    if (!studies.length)
      return void fill(
        body,
        empty(
          "No study yet",
          "A study tries settings on the validation data, several at once, and looks at the test data once, for the winner.",
          "velodrome tune demo --trials 20 --study first",
        ),
      );
    list.rows(studies);
    if (!list.node.isConnected || !body.contains(list.node)) fill(body, card("All studies", {}, list.node));
  };
  const others = h("div");
  const loadPopulations = async () => {
    const { populations } = await get("api/populations", {}, signal);
    fill(others, populations.length ? card("Populations", { about: "settings change while agents train" }, populationTable(populations)) : null);
  };
  await Promise.all([load(), loadPopulations()]);
  fill(host, head("Studies", "Many runs that look for the best settings."), body, others, foot());
  const soon = settled(500, () => Promise.all([load(), loadPopulations()]).catch(() => {}));
  live.on("refresh", soon, signal);
  live.on("studies", ({ studies }) => studies.map((study) => list.row(study)).every(Boolean) || soon(), signal);
}

/** Populations: how far they are, and what is best so far. */
function populationTable(rows) {
  return table(
    "Populations",
    [
      {
        key: "name",
        name: "Population",
        side: "left",
        by: ({ name }) => name,
        show: ({ name }) => h("a", { href: `populations/${part(name)}` }, name),
      },
      { key: "status", name: "Status", side: "left", by: ({ status }) => status, show: ({ status }) => badge(status) },
      {
        key: "rounds",
        name: "Rounds",
        by: ({ over }) => over,
        show: ({ name, over, rounds }) =>
          h("span.nowrap", `${whole(over)} of ${whole(rounds)}`, bar(`Progress of ${name}`, over / rounds).node),
      },
      { key: "members", name: "Members", by: ({ members }) => members, show: ({ members }) => whole(members) },
      { key: "best", name: "Best of the last round", show: ({ best }) => (best ? figure(best.score) : NOTHING) },
      { key: "score", name: "Score", side: "left", show: ({ score }) => score },
      {
        key: "updated",
        name: "Last change",
        by: ({ updated }) => updated,
        descendingFirst: true,
        show: ({ updated }) => h("span.nowrap", ago(updated)),
      },
    ],
    { rows, identity: ({ name }) => name, sort: "updated", descending: true },
  ).node;
}
