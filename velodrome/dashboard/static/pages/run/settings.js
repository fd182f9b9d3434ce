/** What a run was told: first what differs from its preset, then everything. */

import { part } from "../../core/api.js";
import { freshId, h } from "../../core/element.js";
import { ago, counted, figure, moment, short, whole } from "../../core/format.js";
import { badge, card, command, facts } from "../../parts/basics.js";
import { table } from "../../parts/table.js";

const told = (value) =>
  value === null || value === undefined
    ? "none"
    : typeof value === "string"
      ? value
      : typeof value === "number"
        ? String(value)
        : figure(value);

export function settings(run) {
  const changed = run.differences.filter(
    (row) => !run.preset || JSON.stringify(row.value) !== JSON.stringify(row.preset),
  );
  const differences = changed.length
    ? table(
        "What differs from the preset",
        [
          {
            key: "key",
            name: "Setting",
            side: "left",
            by: (row) => row.key,
            show: (row) => [h("code", row.key), row.meaning ? h("span.small.muted", h("br"), row.meaning) : null],
          },
          { key: "value", name: "This run", show: (row) => h("b.anywhere", told(row.value)) },
          { key: "preset", name: run.preset ? `Preset ${run.preset}` : "Preset", show: (row) => told(row.preset) },
          { key: "default", name: "Default", show: (row) => told(row.default) },
        ],
        { rows: changed },
      ).node
    : h("p.muted", "It was told nothing beyond its preset.");
  const id = freshId("search");
  const rows = Object.entries(run.config).map(([key, value]) => ({ key, value }));
  const all = table(
    "All settings",
    [
      { key: "key", name: "Setting", side: "left", by: (row) => row.key, show: (row) => h("code", row.key) },
      { key: "value", name: "Value", show: (row) => h("span.anywhere", told(row.value)) },
    ],
    { rows },
  );
  const search = h("input", {
    id,
    type: "search",
    placeholder: "part of a name",
    on: { input: () => all.rows(rows.filter((row) => row.key.includes(search.value.trim()))) },
  });
  return [
    card(
      "What differs",
      { about: run.preset ? `from the preset ${run.preset}` : "from the defaults" },
      differences,
      run.command ? command(run.command) : null,
    ),
    run.members.length
      ? card(
          "Seeds",
          { about: "trainings that differ in their seed only" },
          table(
            "Seeds",
            [
              {
                key: "name",
                name: "Run",
                side: "left",
                show: (member) => h("a", { href: `runs/${part(member.id)}` }, member.name),
              },
              { key: "seed", name: "Seed", by: (member) => member.seed, show: (member) => String(member.seed) },
              { key: "status", name: "Status", side: "left", show: (member) => badge(member.status) },
              { key: "steps", name: "Steps", show: (member) => short(member.steps) },
              { key: "updated", name: "Last change", show: (member) => ago(member.updated) },
            ],
            { rows: run.members },
          ).node,
        )
      : null,
    h(
      "div.columns",
      card(
        "Made with",
        {},
        facts([
          ...Object.entries(run.versions ?? {}),
          ["commit", run.git_commit],
          ["machine", machineText(run.machine)],
          ["data", run.data_hash ? h("a", { href: `data/${part(run.data_hash)}` }, run.data_hash.slice(0, 12)) : null],
        ]),
      ),
      card(
        "Checkpoints",
        {},
        run.checkpoints.length
          ? table(
              "Checkpoints",
              [
                { key: "step", name: "Step", by: (row) => row.step, show: (row) => whole(row.step) },
                { key: "pinned", name: "Kept", show: (row) => (row.pinned ? "for good" : "until newer ones come") },
                { key: "time", name: "Written", show: (row) => moment(row.time) },
              ],
              { rows: run.checkpoints },
            ).node
          : h("p.muted", "None yet."),
        run.lineage.length
          ? h(
              "ul.plain",
              run.lineage.map((entry) =>
                h("li", entry.parent ? h("a", { href: `runs/${part(entry.parent)}` }, entry.text) : entry.text),
              ),
            )
          : null,
        run.children.length
          ? h(
              "p",
              "Continued by ",
              run.children.map((child, place) => [
                place ? ", " : "",
                h("a", { href: `runs/${part(child.id)}` }, child.id),
              ]),
            )
          : null,
      ),
    ),
    h(
      "details.card",
      h("summary", "All settings"),
      h("div.stack", h("div.field", h("label", { for: id }, "Search"), search), all.node),
    ),
  ];
}

function machineText(machine) {
  if (!machine) return null;
  const gpus = machine.gpus?.length ? `, ${machine.gpus.map((gpu) => gpu.name ?? gpu).join(", ")}` : "";
  return `${machine.cpu ?? machine.host ?? ""}, ${counted(machine.cores, "core")}${gpus}`;
}
