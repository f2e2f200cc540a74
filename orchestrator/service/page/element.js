// Elements from values. Text only ever becomes text: nothing here reads HTML.

const SVG = "http://www.w3.org/2000/svg";

export const h = (tag, attributes, ...children) => made(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => made(document.createElementNS(SVG, tag), attributes, children);

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

export const find = (id) => document.getElementById(id);

const shown = new WeakMap();

// Show one element for each item; an item that is the same value as before keeps its element.
export function keyed(container, items, key, render) {
  const before = shown.get(container) ?? new Map();
  const after = new Map();
  for (const item of items) {
    const name = key(item);
    const old = before.get(name);
    after.set(name, old?.item === item ? old : { item, element: render(item) });
  }
  const elements = [...after.values()].map((one) => one.element);
  for (const { element } of before.values()) if (!elements.includes(element)) element.remove();
  elements.forEach((element, place) => {
    if (container.children[place] !== element) container.insertBefore(element, container.children[place] ?? null);
  });
  shown.set(container, after);
}

export const seconds = (value) => `${value.toFixed(2)} s`;
export const percent = (value) => (value === null ? "–" : `${Math.round(value * 100)}%`);
export const count = (value) => value.toLocaleString("en");
export const score = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(2));
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

const LETTERS = { small: "S", large: "L", critic: "C" };

// The shape says it as well as the colour: a disc is the small model, a square the large one. Of a model within a pair
// the letters are those of its path.
export const badge = (path) => {
  const letters = path.split(".").map((role) => LETTERS[role] ?? "?");
  return h("span", { class: "badge", "data-author": path, "aria-hidden": "true" }, letters.join(""));
};
