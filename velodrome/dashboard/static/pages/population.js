/** A population: how far it is, how its members did round by round, and who went on from whom with which settings. */

import { get, part } from "../core/api.js";
import { fill, h, settled } from "../core/element.js";
import { NOTHING, ago, figure, whole } from "../core/format.js";
import * as live from "../core/live.js";
import { LineChart } from "../charts/line.js";
import { badge, card, command, facts, foot, head, select, tiles } from "../parts/basics.js";
import { table } from "../parts/table.js";

/** A setting as it is read. */
const setting = (value) => (value === undefined ? NOTHING : figure(value));

/** A member's run, as a link if this server has it; its folder's name without the moment and the id. */
function runOf({ id, run }) {
  const name = run.replace(/-\d{8}-\d{6}-[0-9a-f]+$/, "");
  return id ? h("a.nowrap", { href: `runs/${part(id)}`, title: run }, name) : h("span.nowrap", { title: run }, name);
}

export async function show(host, { parts, signal, title }) {
  const path = `api/populations/${part(parts.name)}`;
  let population = await get(path, {}, signal);
  title(population.name);
  const top = h("div.stack");
  const rounds = h("div");
  const scores = new LineChart("Scores of the members after each round", {
    x: "whole",
    none: "No round is over yet.",
    signal,
  });
  let wanted = null; // the round that is shown; null: the last one
  const list = table("Members", columnsOf(() => population, () => shown()), {
    identity: (member) => String(member.place),
    sort: "score",
    descending: true,
  });
  const shown = () => wanted ?? population.history.length;

  function draw() {
    const { best, history } = population;
    fill(
      top,
      head(population.name, [badge(population.status), ` · a population · changed ${ago(population.updated)}`]),
      tiles([
        ["Rounds", `${whole(population.over)} of ${whole(population.rounds)}`, "are over"],
        ["Members", whole(population.members), "train side by side"],
        ["Best", best ? figure(best.score) : NOTHING, `${population.score.replaceAll("_", " ")}, validation`],
      ]),
      best
        ? card(
            "Best of the last round that is over",
            {},
            facts([["Run", runOf(best)], ...population.keys.map((key) => [key, setting(best.settings[key])])]),
          )
        : null,
      population.command
        ? card("Its runs", { about: "they have a store of their own; this command shows them" }, command(population.command))
        : null,
    );
    const over = history
      .map((members, place) => [place + 1, members.map(({ score }) => score).filter((score) => score !== null)])
      .filter(([, known]) => known.length);
    const line = (label, of) => ({ label, x: over.map(([number]) => number), y: over.map(([, known]) => of(known)) });
    scores.data([
      line("best", (known) => Math.max(...known)),
      line("median", (known) => known.toSorted((a, b) => a - b)[Math.floor((known.length - 1) / 2)]),
      line("worst", (known) => Math.min(...known)),
    ]);
    fill(
      rounds,
      select(
        "Round",
        history.map((_, place) => [String(place + 1), `Round ${place + 1}`]),
        String(shown()),
        (number) => {
          wanted = Number(number) === history.length ? null : Number(number);
          drawMembers();
        },
      ),
    );
    drawMembers();
  }

  function drawMembers() {
    list.rows((population.history[shown() - 1] ?? []).map((member, place) => ({ ...member, place })));
  }

  draw();
  fill(
    host,
    top,
    card("Scores by round", { about: "of the validation split, when a round was over" }, scores.node),
    card("Members", { about: "who gave way went on from a better one, with settings near its own" }, rounds, list.node),
    foot(),
  );
  const soon = settled(300, async () => {
    try {
      population = await get(path, {}, signal);
    } catch (error) {
      if (!signal.aborted) console.warn(error.message);
      return;
    }
    if (!rounds.contains(document.activeElement)) draw();
  });
  live.on("refresh", soon, signal);
  live.on("machine", () => population.status === "running" && soon(), signal); // its file is in no store
}

function columnsOf(population, round) {
  const before = (member) => (member.parent === null ? null : population().history[round() - 2]?.[member.parent]);
  return [
    { key: "place", name: "Member", by: ({ place }) => place, show: ({ place }) => whole(place) },
    { key: "run", name: "Run", side: "left", by: ({ run }) => run, show: runOf },
    {
      key: "parent",
      name: "Went on from",
      side: "left",
      by: ({ parent }) => parent,
      show: (member) => (before(member) ? [`${member.parent}: `, runOf(before(member))] : "itself"),
    },
    ...population().keys.map((key) => ({
      key,
      name: key,
      by: ({ settings }) => settings[key],
      show: ({ settings }) => setting(settings[key]),
    })),
    {
      key: "score",
      name: "Score",
      descendingFirst: true,
      by: ({ score }) => score,
      show: ({ score }) => figure(score),
    },
  ];
}
