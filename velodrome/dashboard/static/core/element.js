/**
 * Elements made from code. Text goes in as text nodes only, never as markup, and styles through the style object, so
 * that names from data cannot become markup and the strict Content-Security-Policy holds.
 */

const SVG = "http://www.w3.org/2000/svg";

/** Set what an element is told: listeners, data, styles, properties and attributes. */
function set(node, key, value) {
  if (value === undefined || value === null || value === false) return;
  if (key === "on") for (const [name, listener] of Object.entries(value)) node.addEventListener(name, listener);
  else if (key === "data") Object.assign(node.dataset, value);
  else if (key === "style") for (const [name, style] of Object.entries(value)) node.style.setProperty(name, style);
  else if (key === "class") node.setAttribute("class", value);
  else if (key === "value" || key === "checked" || key === "selected" || key === "disabled") node[key] = value;
  else node.setAttribute(key, value === true ? "" : String(value));
}

/** Append children: elements as they are, anything else as text; lists are flattened, nothing is left out but null. */
function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

function made(node, rest) {
  const told = rest[0];
  const isTold = told && typeof told === "object" && !(told instanceof Node) && !Array.isArray(told);
  if (isTold) for (const [key, value] of Object.entries(told)) set(node, key, value);
  return append(node, isTold ? rest.slice(1) : rest);
}

/**
 * Make an HTML element: h("p", {class: "muted", on: {click}}, "text", child); "p.muted" is short for the class.
 * @returns {any}
 */
export function h(tag, ...rest) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(" ");
  const told = rest[0];
  if (classes.length && told?.class && !(told instanceof Node))
    rest[0] = { ...told, class: `${classes.join(" ")} ${told.class}` };
  return made(node, rest);
}

/** Make an SVG element.
 * @returns {any} */
export function s(tag, ...rest) {
  return made(document.createElementNS(SVG, tag), rest);
}

/** Put these children in place of what an element has. */
export function fill(node, ...children) {
  node.replaceChildren();
  return append(node, children);
}

/** Write a text if it differs: an unchanged one costs no layout and is not read aloud again. */
export function write(node, text) {
  const told = String(text);
  if (node.textContent !== told) node.textContent = told;
}

let counted = 0;

/** An id that no other element has. */
export function freshId(start = "part") {
  counted += 1;
  return `${start}-${counted}`;
}

/** Call a function at most once in so many milliseconds, after the last of a burst. */
export function settled(milliseconds, call) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...given), milliseconds);
  };
}

/** Move focus to an element that keys cannot reach by themselves, such as a heading. */
export function focusOn(node) {
  if (!node.hasAttribute("tabindex")) node.setAttribute("tabindex", "-1");
  node.focus({ preventScroll: true });
}
