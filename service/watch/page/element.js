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

// Show one element for each item; an item whose value is the same as before keeps its element.
export function keyed(container, items, key, render, valueOf = (item) => item) {
  const before = shown.get(container) ?? new Map();
  const after = new Map();
  for (const item of items) {
    const name = key(item);
    const old = before.get(name);
    const value = valueOf(item);
    after.set(name, old?.value === value ? old : { value, element: render(item) });
  }
  const elements = [...after.values()].map((one) => one.element);
  const remaining = new Set(elements);
  for (const { element } of before.values()) if (!remaining.has(element)) element.remove();
  let next = container.firstElementChild;
  for (const element of elements) {
    if (element === next) next = next.nextElementSibling;
    else container.insertBefore(element, next);
  }
  shown.set(container, after);
}

export const seconds = (value) => `${value.toFixed(2)} s`;
export const percent = (value) => (value === null ? "–" : `${Math.round(value * 100)}%`);
export const count = (value) => value.toLocaleString("en");
export const score = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(2));
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

const LETTERS = { small: "S", large: "L", critic: "C" };

// The shape says it as well as the colour: a disc is the small model, a square the large one.
export const badge = (role) =>
  h("span", { class: "badge", "data-author": role, "aria-hidden": "true" }, LETTERS[role] ?? "?");

// The mark of a fate says it as well as its colour. It is drawn around the point 0, 0, which fits bars and texts alike.
const MARKS = {
  kept: "M-3.5 0.5L-1 3L3.5 -2.5",
  repaired: "M-3 -3.5V1H3.2M0.7 -1.7L3.4 1L0.7 3.7",
  rejected: "M-3 -3L3 3M3 -3L-3 3",
  lost: "M0 -3.2A3.2 3.2 0 1 1 -0.01 -3.2Z",
};

export const markPath = (fate, attributes) =>
  s("path", { class: "mark", "data-fate": fate, d: MARKS[fate], ...attributes });

export const mark = (fate) =>
  s("svg", { class: "fate-mark", viewBox: "-6 -6 12 12", "aria-hidden": "true" }, markPath(fate));
