/** A form made from the declared settings: their meaning, unit and range, the same messages, the same command. */

import { get, part, post } from "../core/api.js";
import { fill, freshId, h, settled, write } from "../core/element.js";
import { card, command, foot, head, select } from "../parts/basics.js";
import { announce, carryOut, notice } from "../parts/notices.js";

const OFTEN = ["name", "steps", "total_steps", "seed", "seeds", "num_envs", "device", "env", "algorithm"]; // open at first

export async function show(host, { asked, signal, go, title }) {
  title("New training");
  const fields = await get("api/config/fields", { env: asked.get("env") ?? "" }, signal);
  const { presets } = fields;
  const wanted = [asked.get("preset"), "demo", presets[0]?.name].find((name) =>
    presets.some((each) => each.name === name),
  );
  const chosen = { preset: wanted ?? "", settings: {} };
  const inputs = new Map();
  const box = h("div");
  const problems = h("div", { role: "status" });
  const about = h("p.muted");
  const sections = h("div.stack");
  const submit = h("button", { type: "submit", class: "main" }, "Submit");
  const soon = settled(300, () =>
    check().catch((error) => !signal.aborted && fill(problems, h("p.problem", error.message))),
  );
  const counted = (name, value, about) =>
    h("input", { id: freshId(name), type: "number", value, step: "1", required: true, on: { input: soon }, ...about });
  const priority = counted("priority", "0", { min: "-1000000", max: "1000000" });
  const cores = counted("cores", "1", { min: "1", max: "100000" });
  const search = h("input", {
    id: freshId("search"),
    type: "search",
    placeholder: "part of a name or meaning",
    on: { input: () => find(search.value.trim().toLowerCase()) },
  });
  const form = h(
    "form.stack",
    {
      novalidate: true,
      on: {
        submit: (event) => {
          event.preventDefault();
          carryOut(submit, send);
        },
      },
    },
    card(
      "Preset",
      {},
      h(
        "div.filters",
        select(
          "Start from",
          presets.map((each) => [each.name, each.name]),
          chosen.preset,
          (name) => choose(name),
        ),
        h("div.field", h("label", { for: priority.id }, "Priority"), priority),
        h("div.field", h("label", { for: cores.id }, "Cores"), cores),
      ),
      about,
    ),
    h("div.field", h("label", { for: search.id }, "Find a setting"), search),
    sections,
    card(
      "The same on the command line",
      {},
      box,
      problems,
      h("div.actions", submit, h("span.muted.small", "It is put into the queue; the service trains it.")),
    ),
  );
  fill(
    host,
    head(
      "New training",
      "Every setting has its preset's value; change what you like. A text is read as on the command line.",
    ),
    form,
    foot(),
  );

  function preset() {
    return presets.find((each) => each.name === chosen.preset) ?? { settings: {}, about: "" };
  }

  async function choose(name) {
    const before = preset().env;
    chosen.preset = name;
    if (preset().env !== before) Object.assign(fields, await get("api/config/fields", { env: preset().env }, signal));
    chosen.settings = {};
    build();
    await check();
  }

  /** The value that holds if nothing is typed. */
  const standing = (field) => preset().settings[field.key] ?? field.default;

  function build() {
    write(about, preset().about ?? "");
    inputs.clear();
    fill(
      sections,
      fields.sections.map((section) => {
        const made = section.fields.map(control);
        const isOpen = section.fields.some((field) => OFTEN.includes(field.key));
        return h(
          "details.card",
          { open: isOpen, data: { section: section.name, algorithm: section.algorithm ?? "" } },
          h("summary", section.name || "General", " ", h("span.muted.small", section.meaning ?? "")),
          h("div.form-grid", made),
        );
      }),
    );
  }

  function control(field) {
    const id = freshId("setting");
    const value = standing(field);
    const shown = text(value);
    const changed = () => {
      const now = input.type === "checkbox" ? input.checked : input.value;
      const isSame = input.type === "checkbox" ? now === Boolean(value) : now === shown;
      if (isSame) delete chosen.settings[field.key];
      else chosen.settings[field.key] = now === "" && field.nullable ? null : now;
      node.dataset.changed = String(!isSame);
      soon();
    };
    let input;
    const described = `${id}-about ${id}-problem`;
    if (field.kind === "bool" && !field.nullable)
      input = h("input", { id, type: "checkbox", checked: Boolean(value), "aria-describedby": described });
    else if (field.choices?.length) {
      const options = [
        ...(field.nullable ? [["", "none"]] : []),
        ...field.choices.map((each) => [text(each), text(each)]),
      ];
      if (!options.some(([key]) => key === shown)) options.unshift([shown, shown]);
      input = h(
        "select",
        { id, "aria-describedby": described },
        options.map(([key, name]) => h("option", { value: key }, name)),
      );
      input.value = shown;
    } else
      input = h("input", {
        id,
        type: "text",
        value: shown,
        inputmode: ["integer", "number"].includes(field.kind) ? "decimal" : "text",
        autocomplete: "off",
        spellcheck: "false",
        placeholder: field.nullable ? "none" : "",
        "aria-describedby": described,
      });
    input.addEventListener(input.tagName === "INPUT" && input.type === "text" ? "input" : "change", changed);
    const problem = h("p.problem", { id: `${id}-problem` });
    const range = [field.legal, field.unit && !String(field.legal ?? "").includes(field.unit) ? field.unit : null]
      .filter(Boolean)
      .join(", ");
    const node = h(
      "div.field",
      { data: { key: field.key } },
      h("label", { for: id }, field.key),
      input,
      h("p.about", { id: `${id}-about` }, [field.meaning, range && `(${range})`].filter(Boolean).join(" ")),
      problem,
    );
    inputs.set(field.key, { input, problem, node, field });
    return node;
  }

  function find(words) {
    for (const section of sections.children) {
      let isAny = false;
      for (const node of section.querySelectorAll(".field")) {
        const fits = !words || node.textContent.toLowerCase().includes(words);
        node.hidden = !fits;
        isAny ||= fits;
      }
      section.hidden = !isAny;
      if (words && isAny) section.open = true;
    }
  }

  /** Tell what is wrong beside the setting that is; what belongs to none stands above the button. */
  function tell(found) {
    for (const { input, problem } of inputs.values()) {
      write(problem, "");
      input.removeAttribute("aria-invalid");
    }
    const others = [];
    for (const { key, message } of found) {
      const known = inputs.get(key);
      if (!known) {
        others.push(key ? `${key}: ${message}` : message);
        continue;
      }
      write(known.problem, message);
      known.input.setAttribute("aria-invalid", "true");
      known.node.closest("details").open = true;
    }
    const named = found.filter(({ key }) => inputs.has(key)).map(({ key }) => key);
    fill(
      problems,
      named.length ? h("p.problem", `Not legal: ${named.join(", ")}`) : null,
      others.map((text_) => h("p.problem", text_)),
    );
  }

  const body = () => ({ preset: chosen.preset || null, settings: chosen.settings });

  let asking = 0;
  async function check() {
    asking += 1;
    const number = asking;
    const found = await post("api/config/check", body(), signal);
    if (number !== asking) return;
    tell(found.problems);
    submit.disabled = !found.ok;
    const flags = [
      ["--priority", priority.value, "0"],
      ["--cores", cores.value, "1"],
    ].filter(([, value, standard]) => value !== "" && value !== standard);
    fill(
      box,
      command([found.command, ...flags.map(([flag, value]) => `${flag} ${value}`)].join(" ")),
      h("p.small.muted", "or at once, without the queue: ", h("code", found.train_command)),
    );
    const algorithm = found.effective?.algorithm;
    for (const section of sections.children) {
      const belongs = section.dataset.algorithm;
      section.classList.toggle("other", Boolean(belongs && algorithm && belongs !== algorithm));
    }
  }

  async function send() {
    if (![priority, cores].every((each) => each.reportValidity())) return; // the browser says what is legal
    try {
      const { job } = await post("api/jobs", {
        ...body(),
        priority: Number(priority.value),
        cores: Number(cores.value),
        evaluate: true,
      });
      notice(h("span", "Submitted: ", h("a", { href: `jobs/${part(job.id)}` }, job.name)));
      await go(`jobs/${part(job.id)}`);
    } catch (error) {
      if (!error.problems?.length) throw error;
      tell(error.problems);
      announce("Some settings are not legal");
      inputs.get(error.problems[0].key)?.input.focus();
    }
  }

  build();
  await check();
}

/** A value as it is typed. */
function text(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
