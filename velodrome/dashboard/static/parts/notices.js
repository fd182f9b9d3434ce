/** What the page tells beside itself: a spoken line, a note in the corner, a question before something is done. */

import { freshId, h, write } from "../core/element.js";

/** Say something to those who listen rather than look. */
export function announce(text) {
  const announcer = document.getElementById("announcer");
  if (announcer) write(announcer, text);
}

/** A note in the corner; errors stay until they are closed. */
export function notice(content, { kind = "note", seconds = 6 } = {}) {
  const host = document.getElementById("notices");
  const close = h("button", { type: "button", class: "quiet", "aria-label": "Close this message" }, "Close");
  const node = h(
    "div.notice",
    { data: { kind }, role: kind === "error" ? "alert" : "status" },
    h("div", content),
    close,
  );
  const end = () => node.remove();
  close.addEventListener("click", end);
  host.append(node);
  while (host.children.length > 4) host.firstElementChild.remove();
  if (kind !== "error") setTimeout(end, seconds * 1000);
  return end;
}

/** Tell an error. */
export const complain = (error) => notice(error.message || String(error), { kind: "error" });

/**
 * Ask before something is done. Resolves to null if it is not wanted, else to the fields that were filled in.
 * @param {string} title
 * @param {string} text what will happen
 * @param {{yes?: string, danger?: boolean, fields?: {name: string, label: string, value?: string, hint?: string}[]}} options
 */
export function question(title, text, { yes = "Yes", danger = false, fields = [] } = {}) {
  const id = freshId("question");
  const inputs = fields.map((field) => {
    const inputId = freshId("answer");
    return { field, input: h("input", { id: inputId, name: field.name, value: field.value ?? "" }), inputId };
  });
  // Enter in a field presses the first button that submits: that one says yes.
  const not = h("button", { type: "button", on: { click: () => dialog.close("no") } }, "Not now");
  const dialog = h(
    "dialog",
    { "aria-labelledby": id },
    h(
      "form",
      { method: "dialog" },
      h("h2", { id }, title),
      h("p", text),
      inputs.map(({ field, input, inputId }) =>
        h(
          "div.field",
          h("label", { for: inputId }, field.label),
          input,
          field.hint && h("p", { class: "small muted" }, field.hint),
        ),
      ),
      h(
        "div.actions",
        not,
        h("button", { value: "yes", type: "submit", class: danger ? "danger" : "main" }, yes),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const answers = Object.fromEntries(inputs.map(({ field, input }) => [field.name, input.value.trim()]));
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? answers : null);
    });
  });
}

/** Do something that a button asks for: the button waits, an error is told, what came back is returned. */
export async function carryOut(button, work) {
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  try {
    return await work();
  } catch (error) {
    complain(error);
    return null;
  } finally {
    button.disabled = false;
    button.removeAttribute("aria-busy");
  }
}
