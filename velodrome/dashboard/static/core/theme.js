/** Light or dark: as the system has it, or as the reader chose here. */

import { h } from "./element.js";

const CHOICES = ["system", "light", "dark"];
const TOLD = { system: "as the system has them", light: "light", dark: "dark" };
const KEY = "velodrome-theme";
const listeners = new Set();
const system = matchMedia("(prefers-color-scheme: dark)");

function remembered() {
  try {
    const found = localStorage.getItem(KEY);
    return CHOICES.includes(found) ? found : "system";
  } catch {
    return "system"; // storage is forbidden in this browser
  }
}

let choice = remembered();

function apply() {
  const root = document.documentElement;
  if (choice === "system") delete root.dataset.theme;
  else root.dataset.theme = choice;
  known.clear();
  for (const listener of listeners) listener();
}

/** Call a function whenever the colours change; returns what ends that. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Let a button go round the choices. */
export function themeButton(button) {
  const tell = () => {
    button.replaceChildren(
      h("span", { "aria-hidden": "true" }, choice === "system" ? "Auto" : choice === "light" ? "Light" : "Dark"),
    );
    button.setAttribute("aria-label", `Colours: ${TOLD[choice]}. Change`);
  };
  button.addEventListener("click", () => {
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // It holds for this tab then.
    }
    apply();
    tell();
  });
  tell();
}

const probe = h("i", { hidden: true });
const known = new Map();

/** A colour of the theme by the name of its custom property, as canvases need it. */
export function colour(name) {
  if (!known.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = "";
    probe.style.color = `var(--${name}, var(--others))`;
    known.set(name, getComputedStyle(probe).color);
  }
  return known.get(name);
}

/** The same colour, let through to a share. */
export function faded(name, share) {
  return colour(name).replace(/^rgb\((.*)\)$/, `rgba($1, ${share})`);
}

system.addEventListener("change", apply);
addEventListener("storage", (event) => {
  if (event.key !== KEY) return;
  choice = remembered();
  apply();
});
apply();
