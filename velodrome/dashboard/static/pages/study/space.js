/** The settings that a study tries: all of them as parallel coordinates, one by one as slices. */

import { fill, h } from "../../core/element.js";
import { figure, whole } from "../../core/format.js";
import { LineChart } from "../../charts/line.js";
import { Parallel } from "../../charts/parallel.js";
import { card, select } from "../../parts/basics.js";
import { unit } from "../study.js";

const AXES = 8; // at first; more can be ticked
const MOST_AXES = 24;

/** What was searched: "0.8 to 1". */
const inWords = ({ low, high, log, text }) =>
  Number.isFinite(low) && Number.isFinite(high)
    ? `${figure(low)} to ${figure(high)}${log ? ", as powers" : ""}`
    : text;

/** Names of settings without their section, as long as that leaves them apart. */
function shortNames(keys) {
  const last = (key) => key.split(".").pop();
  const isAlone = (key) => keys.filter((other) => last(other) === last(key)).length === 1;
  return Object.fromEntries(keys.map((key) => [key, isAlone(key) ? last(key) : key]));
}

export function space(firstStudy, firstTrials, signal, kept) {
  let [study, trials] = [firstStudy, firstTrials];
  const count = h("span.muted.small", { role: "status" });
  const parallel = new Parallel(
    "Trials over the settings that they tried",
    (rows) => {
      count.textContent = rows === null ? "" : `${whole(rows.length)} trials within the brushes`;
      clear.hidden = rows === null;
      kept(rows);
    },
    signal,
  );
  const clear = h(
    "button",
    { type: "button", hidden: true, on: { click: () => parallel.clear() } },
    "Take the brushes away",
  );
  const chosen = new Set(ranked().slice(0, AXES));
  const picker = h("details", h("summary", "Choose the axes"));
  const slice = { key: ranked()[0] ?? "" };
  const chart = new LineChart("Score over one setting", {
    x: "number",
    y: unit(study),
    height: 230,
    none: "No trial is over yet.",
    signal,
  });
  const sliceBody = h("div.stack");

  /** Keys of the space, the most important first. */
  function ranked() {
    const weight = (key) => study.importances?.[key] ?? 0;
    return Object.keys(trials.params ?? {}).sort((a, b) => weight(b) - weight(a));
  }

  function drawPicker() {
    const boxes = ranked()
      .slice(0, 200)
      .map((key) => {
        const box = h("input", {
          type: "checkbox",
          checked: chosen.has(key),
          on: {
            change: () => {
              if (box.checked && chosen.size >= MOST_AXES) box.checked = false;
              else if (box.checked) chosen.add(key);
              else chosen.delete(key);
              drawParallel();
            },
          },
        });
        return h("label.nowrap", box, ` ${key}`);
      });
    fill(picker, h("summary", "Choose the axes"), h("div.filters", boxes));
  }

  function drawParallel() {
    const rows = trials.number.map((_, row) => row).filter((row) => trials.value[row] !== null);
    const about = Object.fromEntries((study.space ?? []).map((each) => [each.key, each]));
    const keys = ranked().filter((key) => chosen.has(key));
    const names = shortNames(keys);
    const axes = keys
      .map((key) => ({
        key,
        name: names[key].replaceAll("_", " "),
        title: key,
        values: trials.params[key],
        log: Boolean(about[key]?.log),
        choices: about[key]?.kind === "choice" ? about[key].choices : undefined,
      }));
    axes.push({ key: "value", name: study.score, values: trials.value, kind: unit(study) });
    parallel.data(axes, rows, trials.value, study.best ? trials.number.indexOf(study.best.number) : null);
  }

  function drawSlice() {
    const values = trials.params[slice.key] ?? [];
    const about = (study.space ?? []).find((each) => each.key === slice.key);
    const isNumeric = values.every((value) => value === null || typeof value === "number");
    const names = isNumeric
      ? null
      : (about?.choices ?? [...new Set(values.filter((value) => value !== null))]).map(String);
    const points = trials.number
      .map((_, row) => [isNumeric ? values[row] : names.indexOf(String(values[row])), trials.value[row]])
      .filter(([x, y]) => x !== null && x >= (isNumeric ? -Infinity : 0) && y !== null)
      .sort((a, b) => a[0] - b[0]);
    chart.data(
      points.length
        ? [{ label: study.score, name: "agent", x: points.map(([x]) => x), y: points.map(([, y]) => y), points: true }]
        : [],
    );
    const pick = select(
      "Setting",
      ranked().map((key) => [key, key]),
      slice.key,
      (key) => {
        slice.key = key;
        drawSlice();
      },
    );
    const told = names
      ? h("p.small.muted", names.map((name, at) => `${at}: ${name}`).join(", "))
      : about?.text
        ? h("p.small.muted", `searched: ${inWords(about)}`)
        : null;
    if (!sliceBody.contains(document.activeElement)) fill(sliceBody, pick, chart.node, told);
    else if (sliceBody.lastElementChild !== chart.node) sliceBody.lastElementChild.replaceWith(told ?? h("p"));
  }

  function draw() {
    drawPicker();
    drawParallel();
    drawSlice();
  }
  draw();
  return {
    parallel: card(
      "All settings at once",
      {
        about: "drag on an axis to keep a part of it; the thick line is the best trial, blue ones are the best quarter",
        actions: [count, clear],
      },
      parallel.node,
      picker,
    ),
    slices: card("One setting at a time", { about: "each dot is a trial" }, sliceBody),
    data(nextStudy, nextTrials) {
      [study, trials] = [nextStudy, nextTrials];
      for (const key of ranked().slice(0, AXES)) if (chosen.size < AXES) chosen.add(key);
      if (picker.contains(document.activeElement)) {
        drawParallel();
        drawSlice();
      } else draw();
    },
  };
}
