/** The learning curves of a run: in sample and on validation data, actions, losses, speed, and everything else that it measured. */

import { fill, h } from "../../core/element.js";
import { metricCard, Curves } from "../../parts/curves.js";
import { empty, failure } from "../../parts/basics.js";

const PHASES = ["time/environment", "time/inference", "time/learning", "time/other"];
const EQUITY = "episode/equity_return";
const REWARDS = "episode/return"; // their sum, which is no return of an account
// Of several figures, the one to show first.
const FIRST = ["equity_return", "return", "reward", "episode_return", "sharpe"];
const PERCENT = /(^|\/)(return|equity_return|max_drawdown|of_optimum|win_rate|clip_fraction|exposure|in_market|mean_log_return)$/;
const ACCOUNT = /(^|\/)(sharpe|max_drawdown)$/; // only accounts have these; elsewhere a return is a sum of rewards

const lastPart = (name) => name.split("/").pop();
const words = (name) => lastPart(name).replaceAll("_", " ");
const kindOf = (hasAccount) => (name) =>
  PERCENT.test(name) && name !== REWARDS && (hasAccount || lastPart(name) !== "return")
    ? "percent"
    : /per_second|sps/.test(name)
      ? "rate"
      : /bytes|memory/.test(name)
        ? "bytes"
        : "number";

/** Shares of discrete actions in one chart; of continuous ones each figure in its own. */
function actionCharts(names, isShare, called) {
  if (!names.length) return [];
  if (!isShare) return names.map((name) => [name, words(name), [name], { kind: "number" }]);
  const labels = Object.fromEntries(names.map((name) => [name, called[lastPart(name)] ?? `action ${words(name)}`]));
  return [["actions", "share of actions", names, { share: true, kind: "percent", labels }]];
}

/** Names of a run's metrics, those of a group first as a reader would look for them. called: its actions. */
export function chartGroups(names, called = []) {
  const kind = kindOf(names.some((name) => ACCOUNT.test(name)));
  const of = (prefix) => names.filter((name) => name.startsWith(`${prefix}/`));
  const order = (list) => list.slice().sort((a, b) => rank(a) - rank(b));
  const rank = (name) => (FIRST.includes(lastPart(name)) ? FIRST.indexOf(lastPart(name)) : 99);
  const judged = new Map();
  for (const name of order(of("evaluation"))) {
    if (!judged.has(lastPart(name))) judged.set(lastPart(name), []);
    judged.get(lastPart(name)).push(name);
  }
  const titles = names.includes(EQUITY) ? { [EQUITY]: "return", [REWARDS]: "sum of rewards" } : {};
  const single = (list) =>
    list.map((name) => [name, titles[name] ?? words(name), [name], { kind: kind(name), labels: titles }]);
  const isShare = of("action").every((name) => /^\d+$/.test(lastPart(name)));
  const speed = of("time").filter((name) => !PHASES.includes(name));
  const told = new Set([
    "evaluation",
    "episode",
    "action",
    "loss",
    "policy",
    "value",
    "optimiser",
    "time",
    "machine",
    "resources",
  ]);
  const groups = [
    [
      "Validation",
      "as it learns; used for selection",
      [...judged].map(([figure, of_]) => [
        figure,
        figure.replaceAll("_", " "),
        of_,
        {
          kind: kind(figure),
          labels: Object.fromEntries(of_.map((name) => [name, name.split("/").slice(1, -1).join(" ") || words(name)])),
        },
      ]),
    ],
    ["In sample", "the episodes that it trains on", single(order(of("episode")))],
    [
      "Phases",
      "share of the time of each update",
      PHASES.some((name) => names.includes(name))
        ? [["phases", "share of time", PHASES.filter((name) => names.includes(name)), { share: true, kind: "percent" }]]
        : [],
    ],
    [
      "Actions",
      isShare ? "how often each is taken" : "their mean and deviation",
      actionCharts(of("action"), isShare, called),
    ],
    ["Losses", null, single(of("loss"))],
    ["Policy", null, single([...of("policy"), ...of("value"), ...of("optimiser")])],
    [
      "Speed",
      null,
      single(speed.sort((a, b) => Number(/steps_per_second/.test(b)) - Number(/steps_per_second/.test(a)))),
    ],
    ["Resources", "what this training used", single([...of("resources"), ...of("machine")])],
    ["More", null, single(names.filter((name) => !told.has(name.split("/")[0])))],
  ];
  return groups.filter(([, , list]) => list.length);
}

/** The charts of a run; `grow` brings in what came since. */
export function learning(run, signal) {
  const node = h("div.columns");
  const curves = new Curves([run], signal);
  let cards = [];
  const names = (now) => Object.values(now.metric_groups).flat();

  async function begin(now) {
    const all = names(now);
    if (!all.length)
      return void fill(
        node,
        empty(
          "Nothing was measured yet",
          "The first figures come after the first update, within seconds of the start.",
        ),
      );
    await curves.load(all);
    cards = chartGroups(all, now.action_names).map(([title, about, groups]) =>
      metricCard(title, curves, groups, { about, signal }),
    );
    fill(
      node,
      cards.map((card) => card.node),
    );
  }

  begin(run).catch(
    (error) =>
      !signal.aborted &&
      fill(
        node,
        failure(error, () => begin(run)),
      ),
  );
  return {
    node,
    async grow(now) {
      const all = names(now);
      if (!cards.length || all.some((name) => !curves.names.includes(name))) return begin(now);
      await curves.grow();
      for (const card of cards) card.draw();
    },
  };
}
