/** One champion: where it comes from, which it replaced, what it does on paper; and back to the one before. */

import { get, part, post } from "../core/api.js";
import { fill, h, settled } from "../core/element.js";
import { ago, figure, marketTime, moment, whole } from "../core/format.js";
import * as live from "../core/live.js";
import { LineChart } from "../charts/line.js";
import { badge, card, command, facts, foot, warnings } from "../parts/basics.js";
import { carryOut, notice, question } from "../parts/notices.js";
import { table } from "../parts/table.js";
import { checkList } from "../parts/tasks.js";

export async function show(host, { parts, signal, title }) {
  const path = `api/champions/${part(parts.name)}`;
  title(parts.name);
  const top = h("div.stack");
  const body = h("div.stack");
  const paper = paperCard(signal, parts.name);
  fill(host, top, body, paper.node, foot());

  async function load() {
    const champion = await get(path, {}, signal);
    draw(champion);
    paper.set(champion.paper);
  }

  function rollback(champion, to) {
    return async () => {
      const target =
        to ??
        champion.promotions
          .filter((each) => each.number < champion.current)
          .map((each) => each.number)
          .pop();
      if (
        !(await question(
          "Roll back?",
          `Number ${target ?? "before"} becomes the champion ${parts.name} again. Nothing is deleted: the one of now stays in the history.`,
          { yes: "Roll back", danger: true },
        ))
      )
        return;
      await post(`${path}/rollback`, { to });
      notice(`Number ${target ?? "before"} is the champion again`);
      await load();
    };
  }

  function draw(champion) {
    const current = champion.promotions.find((each) => each.current);
    fill(
      top,
      h(
        "div.head",
        h(
          "div",
          h("h1", champion.name),
          h("p", `number ${champion.current}, since ${current ? moment(current.created) : "?"}`),
        ),
        h(
          "div.actions",
          champion.can_roll_back
            ? h(
                "button",
                {
                  type: "button",
                  class: "danger",
                  data: { action: "rollback" },
                  on: { click: (event) => carryOut(event.currentTarget, rollback(champion, null)) },
                },
                "Roll back",
              )
            : null,
          current?.run ? h("a.button", { href: `runs/${part(current.run)}` }, "Its run") : null,
        ),
      ),
      warnings(
        champion.intact
          ? []
          : [
              "Its files were changed after the promotion: their hash differs from the one that was kept. Roll back, or promote anew.",
            ],
      ),
    );
    const promotions = champion.promotions.slice().sort((a, b) => b.number - a.number);
    fill(
      body,
      h(
        "div.columns",
        card(
          "Lineage",
          {},
          facts([
            [
              "Trades",
              [(champion.trades?.symbols ?? []).join(", "), champion.trades?.timeframe].filter(Boolean).join(" · "),
            ],
            ["Policy", typeof champion.policy === "string" ? champion.policy : null],
            ...champion.lineage,
            ["Hash", champion.hash?.slice(0, 16)],
          ]),
        ),
        card(
          "Checks at its promotion",
          {},
          champion.checks.length ? checkList(champion.checks) : h("p.muted", "It was promoted without checks."),
        ),
      ),
      card(
        "History",
        {},
        h(
          "ol.timeline",
          promotions.map((each) =>
            h(
              "li",
              { data: { current: String(each.current) } },
              h(
                "div",
                h("b", `Number ${each.number}`),
                each.current ? h("span", " ", h("span.tag.strong", "current")) : null,
                " from ",
                each.study
                  ? h("a", { href: `studies/${part(each.study)}` }, `study ${each.study}, trial ${each.trial}`)
                  : h("a", { href: `runs/${part(each.run)}` }, `run ${each.run}`),
                each.replaced ? `, in place of number ${each.replaced}` : "",
              ),
              h("div.small.muted", `${moment(each.created)} · ${each.hash?.slice(0, 12) ?? ""}`),
              !each.current && champion.promotions.length > 1
                ? h(
                    "button.quiet",
                    {
                      type: "button",
                      on: { click: (event) => carryOut(event.currentTarget, rollback(champion, each.number)) },
                    },
                    `Back to number ${each.number}`,
                  )
                : null,
            ),
          ),
        ),
        champion.history?.length
          ? table(
              "What happened",
              [
                { key: "time", name: "When", side: "left", show: (each) => h("span.nowrap", moment(each.time)) },
                { key: "kind", name: "What", side: "left", show: (each) => each.kind },
                { key: "text", name: "How", side: "left", show: (each) => each.text },
              ],
              { rows: champion.history.slice(0, 50) },
            ).node
          : null,
      ),
    );
  }

  await load();
  const soon = settled(500, () => load().catch(() => {}));
  live.on("refresh", soon, signal);
  live.on("happened", soon, signal);
}

/** The paper loop: equity of each account, what it holds, and how far it drifts from what was promised. */
function paperCard(signal, name) {
  const body = h("div.stack");
  const equity = new LineChart("Equity of the paper accounts", {
    x: "market",
    y: "money",
    height: 260,
    none: "No bar was traded yet.",
    signal,
  });
  const drift = new LineChart("Drift of the paper loop", {
    x: "market",
    y: "whole",
    height: 180,
    signal,
  });
  return {
    node: card("Paper loop", { about: "the champion on new bars, without money" }, body),
    set(paper) {
      if (!paper)
        return void fill(
          body,
          h("p.muted", "It does not trade on paper. Start it with a feed of bars:"),
          command(`velodrome paper ${name} --feed PATH`),
        );
      equity.data(paper.equity.map((curve) => ({ ...curve, label: curve.label ?? curve.name })));
      const times = paper.drift.map((each) => each.time);
      drift.data(
        [
          ["actions", "decisions that differ"],
          ["missing", "bars that only one has"],
        ]
          .filter(([key]) => paper.drift.some((each) => typeof each[key] === "number"))
          .map(([key, label]) => ({ label, x: times, y: paper.drift.map((each) => each[key] ?? null) })),
      );
      const last = paper.drift[paper.drift.length - 1];
      const isNone = last && paper.drift.every(({ actions, missing, equity: far }) => !actions && !missing && !far);
      fill(
        body,
        h(
          "div.columns",
          facts([
            ["State", badge(paper.running ? "running" : "interrupted", paper.running ? "running" : "stopped")],
            ["Bars", whole(paper.bars)],
            ["First bar", marketTime(paper.started)],
            ["Last bar", marketTime(paper.last_bar)],
            ["Written", ago(paper.updated)],
            ...(paper.positions ?? []).map((each) => [each.account, each.text]),
          ]),
          facts(
            last
              ? [
                  ["Decisions that differ", whole(last.actions)],
                  ["Bars that only one has", whole(last.missing)],
                  ["Largest difference of equity", figure(last.equity)],
                ]
              : [],
          ),
        ),
        equity.node,
        h("h3", "Drift"),
        isNone
          ? h("p.muted", `None: it did what the backtest of the same ${whole(last.bars)} bars does, to the bit.`)
          : last
            ? drift.node
            : h("p.muted", "It was not compared with a backtest yet; that is done now and then, and at the end."),
        paper.last?.length
          ? h(
              "pre.log",
              { tabindex: "0", role: "region", "aria-label": "Last lines of the paper loop" },
              paper.last.join("\n"),
            )
          : null,
        paper.takeovers?.length
          ? h(
              "ul.plain",
              paper.takeovers.map((each) => h("li", each.text)),
            )
          : null,
      );
    },
  };
}
