// One step at a time stands out: in the time line, and in the chain.

import { find } from "./element.js";

const SELECTED = "data-selected";

let pointer = null; // where it was last

export function connectPointer() {
  const keep = (event) => (pointer = [event.clientX, event.clientY]);
  document.addEventListener("pointermove", keep, { capture: true });
}

// Whether the pointer came to another place. If the page scrolled under it, to what was gone to, it points at nothing.
export const hasMoved = ({ clientX, clientY }) => pointer?.[0] !== clientX || pointer?.[1] !== clientY;

export function highlight(draft) {
  const on = draft !== null && draft !== undefined && draft !== "";
  document.documentElement.toggleAttribute("data-selecting", on);
  for (const element of document.querySelectorAll(`[${SELECTED}]`)) element.removeAttribute(SELECTED);
  if (!on) {
    find("details").textContent = find("details").dataset.hint;
    return;
  }
  for (const element of elementsOf(draft)) element.setAttribute(SELECTED, "");
}

// Bars, ticks, and the row of the chain: its own, or that of the fold that it is in.
function elementsOf(draft) {
  const found = [...document.querySelectorAll(`[data-draft="${draft}"]`)];
  return rowOf(draft)?.matches(".fold") ? [...found, rowOf(draft)] : found;
}

export function rowOf(draft) {
  const step = find("steps").querySelector(`.step[data-draft="${draft}"]`);
  const within = ({ dataset }) => Number(dataset.first) <= Number(draft) && Number(draft) <= Number(dataset.last);
  return step ?? [...find("steps").querySelectorAll(".fold")].find(within) ?? null;
}

// Scroll the time line to the first bar of a step, where it is wider than its place.
export function showBars(draft) {
  const plot = find("timeline-plot");
  const bar = plot.querySelector(`.span[data-draft="${draft}"]`);
  if (!bar || plot.scrollWidth <= plot.clientWidth) return;
  const [left, right] = [
    Number(bar.getAttribute("x")),
    Number(bar.getAttribute("x")) + Number(bar.getAttribute("width")),
  ];
  if (left < plot.scrollLeft || right > plot.scrollLeft + plot.clientWidth) {
    plot.scrollLeft = left - plot.clientWidth / 3;
  }
}
