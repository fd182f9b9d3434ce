/** What runs now, what waits, what the machine does, and the last results beside their baselines. */

import { get, part } from "../core/api.js";
import { fill, h, write } from "../core/element.js";
import { NOTHING, ago, bytes, counted, duration, fixed, percent, short, whole } from "../core/format.js";
import * as live from "../core/live.js";
import { LineChart } from "../charts/line.js";
import { bar, badge, card, command, empty, foot, head, resultText, runName, tile, tileRow } from "../parts/basics.js";
import { table } from "../parts/table.js";

const SAMPLE_SECONDS = 15; // about two pixels of the hour; drawing more often would keep a core busy for nothing
const LONGEST_GAP = 60; // seconds between two samples that still belong together
const KEPT_SECONDS = 3600; // of the machine's history, as the server keeps it

export async function show(host, { signal, title }) {
  title("Overview");
  const first = await get("api/overview", {}, signal);
  if (first.empty) {
    fill(host, welcome(first), foot());
    live.on("runs", () => location.reload(), signal);
    live.on("jobs", () => location.reload(), signal);
    return;
  }
  const machine = machineTiles();
  const running = runningCard();
  const queue = queueCard();
  const studies = studiesCard();
  const finished = finishedTable();
  const speed = new LineChart("Environment steps per second over the last hour", {
    x: "time",
    y: "rate",
    height: 200,
    zero: true,
    none: "Nothing trains yet.",
    signal,
  });
  const use = new LineChart("Use of the machine over the last hour", {
    x: "time",
    y: "percent",
    height: 200,
    zero: true,
    signal,
  });
  const history = keepHistory(first.history);
  const about = h("span");
  fill(
    host,
    head("Overview", about, h("a.button", { href: "new" }, "New training")),
    machine.node,
    running.node,
    h(
      "div.columns",
      card("Steps per second", { about: "all trainings together, last hour" }, speed.node),
      card("Machine", { about: "share in use, last hour" }, use.node),
    ),
    h("div.columns", queue.node, studies.node),
    card(
      "Last finished runs",
      { about: "out of sample, beside a baseline; trials are on the page of their study", actions: h("a", { href: "runs" }, "All runs") },
      finished.node,
    ),
    foot(),
  );

  function drawHistory() {
    const { time, ...lines } = broken(history.all());
    speed.data([{ label: "steps per second", x: time, y: lines.steps_per_second }]);
    const known = [
      ["cpu", "CPU"],
      ["memory", "memory"],
      ["gpu", "GPU"],
      ["vram", "VRAM"],
      ["disk", "disk"],
    ];
    use.data(
      known
        .filter(([key]) => lines[key]?.some((value) => value !== null))
        .map(([key, label]) => ({ label, x: time, y: lines[key] })),
    );
  }

  function draw(now) {
    write(
      about,
      `${counted(now.counts.runs, "run")}, ${counted(now.counts.studies, "study", "studies")}, ${counted(now.counts.champions, "champion")} in ${now.folder} · version ${now.version}`,
    );
    machine.set(now.machine, now.running.length || now.running_runs.length, now.queue.waiting);
    running.set(now.running, now.running_runs, now.service.running && !now.queue.waiting);
    queue.set(now.queue, now.service);
    studies.set(now.studies);
    finished.rows(now.finished);
    history.restart(now.history);
    drawHistory();
  }

  draw(first);
  let isAsking = false;
  const again = async () => {
    if (isAsking) return;
    isAsking = true;
    try {
      draw(await get("api/overview", {}, signal));
    } catch (error) {
      if (!signal.aborted) console.warn(error.message);
    } finally {
      isAsking = false;
    }
  };
  let timer = 0;
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(again, 400);
  };
  live.on("refresh", soon, signal);
  live.on("jobs", soon, signal);
  live.on("studies", ({ studies: changed }) => changed.forEach((line) => studies.one(line) || soon()), signal);
  live.on(
    "runs",
    ({ runs }) => runs.forEach((line) => (line.status === "running" && running.one(line)) || soon()),
    signal,
  );
  live.on(
    "machine",
    (sample) => {
      machine.set(sample);
      if (history.add(sample)) drawHistory();
    },
    signal,
  );
}

/** The first page of all: what to type. */
function welcome(overview) {
  return h(
    "div.stack",
    head("Welcome to Velodrome", `Nothing has been trained in ${overview.folder} yet.`),
    card(
      "Your first run",
      { about: "about a minute on a laptop; synthetic prices, no data needed" },
      command(overview.first_command),
      h(
        "p",
        "Type it in a terminal in this folder, or ",
        h("a", { href: "new" }, "fill in a form"),
        ". It appears here while it trains: learning curves, speed, and in the end what it is worth on prices that it never saw.",
      ),
    ),
    card(
      "Then",
      {},
      h(
        "ul.plain",
        h("li", h("code", "velodrome tune demo --trials 20 --study first"), " tries settings and finds the best."),
        h(
          "li",
          h("code", "velodrome data check PATH"),
          " reads your own price files and says what is wrong with them.",
        ),
        h("li", h("code", "velodrome promote first"), " makes the winner a champion, if it stands the checks."),
      ),
    ),
  );
}

function machineTiles() {
  const names = {
    running: "Running",
    speed: "Steps per second",
    cpu: "CPU",
    memory: "Memory",
    gpu: "GPU",
    vram: "VRAM",
    power: "Power",
    disk: "Disk free",
  };
  const made = Object.fromEntries(
    Object.entries(names).map(([key, name]) => [
      key,
      tile(name, { meter: !["running", "speed", "power"].includes(key) }),
    ]),
  );
  const node = tileRow(made);
  const counts = { running: 0, waiting: 0 };
  return {
    node,
    set(now, running = counts.running, waiting = counts.waiting) {
      Object.assign(counts, { running, waiting });
      made.running.set(whole(running), `${whole(waiting)} waiting`);
      if (!now) return; // the first sample comes within two seconds
      made.speed.set(now.steps_per_second ? short(now.steps_per_second) : NOTHING, "now, all trainings");
      made.cpu.set(percent(now.cpu / now.cores, 0), `${fixed(now.cpu, 1)} of ${now.cores} cores`, now.cpu / now.cores);
      made.memory.set(
        percent(now.memory_used / now.memory_total, 0),
        `${bytes(now.memory_used)} of ${bytes(now.memory_total)}`,
        now.memory_used / now.memory_total,
      );
      made.disk.set(bytes(now.disk_free), `of ${bytes(now.disk_total)}`, 1 - now.disk_free / now.disk_total);
      const { gpu } = now;
      for (const key of ["gpu", "vram", "power"]) made[key].node.hidden = !gpu;
      if (!gpu) return;
      made.gpu.set(gpu.use === null ? NOTHING : percent(gpu.use, 0), gpu.name, gpu.use);
      made.vram.set(
        percent(gpu.memory_used / gpu.memory_total, 0),
        `${bytes(gpu.memory_used)} of ${bytes(gpu.memory_total)}`,
        gpu.memory_used / gpu.memory_total,
      );
      made.power.set(
        gpu.power === null ? NOTHING : `${whole(gpu.power)} W`,
        gpu.temperature ? `${whole(gpu.temperature)} °C` : "",
      );
    },
  };
}

/** Lines of what trains, changed in place. */
function runningCard() {
  const body = h("div.lines");
  const node = card("Running now", {}, body);
  const lines = new Map();

  function line(run) {
    const progress = bar(`Progress of ${run.name}`);
    const [steps, speed, left] = [h("span.value"), h("span.value"), h("span.value")];
    const set = (now) => {
      const share = now.total_steps ? now.steps / now.total_steps : 0;
      progress.set(share);
      write(steps, now.total_steps ? `${short(now.steps)} of ${short(now.total_steps)}` : short(now.steps));
      write(speed, now.steps_per_second ? `${short(now.steps_per_second)}/s` : NOTHING);
      write(
        left,
        now.steps_per_second && now.total_steps
          ? `${duration(Math.max(0, now.total_steps - now.steps) / now.steps_per_second)} left`
          : NOTHING,
      );
    };
    const under = [
      run.id,
      run.env,
      run.algorithm,
      run.study_name && `study ${run.study_name}`,
      run.owner && `by ${run.owner}`,
    ]
      .filter(Boolean)
      .join(" · ");
    const made = h(
      "div.line",
      { data: { id: run.id } },
      h("div", h("a", { href: `runs/${part(run.id)}` }, run.name), h("span.sub", under)),
      progress.node,
      steps,
      speed,
      left,
    );
    set(run);
    return { node: made, set, run };
  }

  return {
    node,
    set(jobs, runs, isIdle) {
      const all = new Map(runs.map((run) => [run.id, run]));
      for (const job of jobs) all.set(job.id, { ...job, ...all.get(job.id), owner: job.owner, study_name: job.study_name });
      if (!all.size) {
        lines.clear();
        return void fill(
          body,
          h(
            "div.stack",
            h(
              "p.muted",
              isIdle
                ? "Nothing trains at the moment; the service waits for work."
                : "Nothing trains at the moment.",
            ),
            command("velodrome train demo"),
          ),
        );
      }
      for (const id of [...lines.keys()]) if (!all.has(id)) lines.delete(id);
      for (const [id, run] of all) {
        if (lines.has(id)) lines.get(id).set(Object.assign(lines.get(id).run, run));
        else lines.set(id, line(run));
      }
      const wanted = [...lines.values()].map((each) => each.node);
      if (wanted.length !== body.children.length || wanted.some((each, place) => body.children[place] !== each))
        fill(body, wanted);
    },
    one(run) {
      const known = lines.get(run.id);
      known?.set(Object.assign(known.run, run));
      return Boolean(known);
    },
  };
}

/** What is known of a job that waits. */
const waiting = (job) =>
  [job.message || job.shown, job.study_name && `study ${job.study_name}`, job.priority && `priority ${job.priority}`]
    .filter(Boolean)
    .join(" · ");

function queueCard() {
  const body = h("div.stack");
  const count = h("span.tag");
  return {
    node: card("Queue", { actions: h("div.actions", count, h("a", { href: "jobs" }, "All jobs")) }, body),
    set(queue, service) {
      write(count, `${whole(queue.waiting)} waiting`);
      const idle =
        !service.running && queue.waiting
          ? h("div.stack", h("p.muted", "No service carries them out."), command(service.command))
          : null;
      if (!queue.next.length)
        fill(
          body,
          h("p.muted", "Nothing waits."),
          queue.paused || queue.failed
            ? h("p.small.muted", `${whole(queue.paused)} paused, ${whole(queue.failed)} failed`)
            : null,
        );
      else
        fill(
          body,
          idle,
          h(
            "div.lines",
            queue.next
              .slice(0, 6)
              .map((job) =>
                h(
                  "div.line.plain-line",
                  h("div", h("a", { href: `jobs/${part(job.id)}` }, job.name), h("span.sub", waiting(job))),
                  h("span.value", ago(job.created)),
                ),
              ),
          ),
        );
    },
  };
}

function studiesCard() {
  const body = h("div.lines");
  const lines = new Map();
  const make = (study) => {
    const progress = bar(`Progress of study ${study.name}`);
    const [count, rate, left] = [h("span.value"), h("span.value"), h("span.value")];
    const best = h("span.sub");
    const set = (now) => {
      progress.set(now.wanted ? now.over / now.wanted : 0);
      write(count, `${whole(now.over)} of ${now.wanted ? whole(now.wanted) : NOTHING}`);
      write(rate, now.trials_per_hour ? `${short(now.trials_per_hour)}/h` : NOTHING);
      write(
        left,
        now.status === "running"
          ? now.seconds_left !== null
            ? `${duration(now.seconds_left)} left`
            : NOTHING
          : now.status,
      );
      write(
        best,
        now.best
          ? `${now.score}: best ${now.best.text} (trial ${now.best.number})`
          : `${now.score}: no trial is over yet`,
      );
    };
    const node = h(
      "div.line",
      h("div", h("a", { href: `studies/${part(study.name)}` }, study.name), best),
      progress.node,
      count,
      rate,
      left,
    );
    set(study);
    return { node, set, study };
  };
  return {
    node: card("Studies", { actions: h("a", { href: "studies" }, "All studies") }, body),
    set(studies) {
      lines.clear();
      if (!studies.length)
        return void fill(
          body,
          empty(
            "No study yet",
            "A study tries settings on the validation data and finds the best of them.",
            "velodrome tune demo --trials 20 --study first",
            "h3",
          ),
        );
      for (const study of studies) lines.set(study.name, make(study));
      fill(
        body,
        [...lines.values()].map((each) => each.node),
      );
    },
    one(study) {
      const known = lines.get(study.name);
      known?.set(Object.assign(known.study, study));
      return Boolean(known);
    },
  };
}

function finishedTable() {
  return table("Last finished runs", [
    { key: "name", name: "Run", side: "left", show: (run) => runName(run) },
    { key: "env", name: "Environment", side: "left", show: (run) => `${run.env} · ${run.algorithm}` },
    { key: "result", name: "Out of sample", show: (run) => resultText(run.result)[0] },
    { key: "baseline", name: "Baseline", show: (run) => h("span.nowrap", resultText(run.result)[1]) },
    { key: "status", name: "Status", side: "left", show: (run) => badge(run.status) },
    { key: "updated", name: "When", show: (run) => h("span.nowrap", ago(run.updated)) },
  ]);
}

/** The same columns with an empty moment where nothing was measured for a while: no line is drawn across it. */
function broken(columns) {
  const { time } = columns;
  const places = time.map((_, at) => at).filter((at) => at > 0 && time[at] - time[at - 1] > LONGEST_GAP);
  if (!places.length) return columns;
  const parted = ([key, values]) => {
    const made = values.slice();
    for (const at of places.toReversed()) made.splice(at, 0, key === "time" ? time[at - 1] + 1 : null);
    return [key, made];
  };
  return Object.fromEntries(Object.entries(columns).map(parted));
}

/** The machine's last hour, columns by name, grown by each sample that is told. */
function keepHistory(first) {
  let columns = { ...first };
  return {
    all: () => columns,
    restart(next) {
      columns = Object.fromEntries(Object.entries(next).map(([key, values]) => [key, values.slice()]));
    },
    add(now) {
      const { time } = columns;
      if (time.length && now.time - time[time.length - 1] < SAMPLE_SECONDS) return false;
      const gpu = now.gpu ?? {};
      const sample = {
        time: now.time,
        cpu: now.cpu / now.cores,
        memory: now.memory_used / now.memory_total,
        disk: 1 - now.disk_free / now.disk_total,
        gpu: gpu.use ?? null,
        vram: gpu.memory_total ? gpu.memory_used / gpu.memory_total : null,
        power: gpu.power ?? null,
        steps_per_second: now.steps_per_second ?? null,
      };
      for (const [key, values] of Object.entries(columns)) values.push(sample[key] ?? null);
      while (time.length > 2 && now.time - time[0] > KEPT_SECONDS)
        for (const values of Object.values(columns)) values.shift();
      return true;
    },
  };
}
