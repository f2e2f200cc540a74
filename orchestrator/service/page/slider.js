// The threshold, to be moved: which verdicts of this trace would have been others.

import { find, plural, s, score } from "./element.js";
import { changes, thresholds } from "./threshold.js";

let known = null;
let moved = null; // where somebody has put it

export function showThreshold(view) {
  known = thresholds(view);
  find("threshold").hidden = known === null;
  if (known === null) return;
  const input = find("threshold-input");
  Object.assign(input, { min: known.low, max: known.high, step: known.step });
  input.value = moved ?? known.own;
  showChanges();
  drawScores();
}

export function resetThreshold() {
  moved = null;
}

export function connectThreshold() {
  find("threshold-input").addEventListener("input", (event) => move(Number(event.target.value)));
  find("threshold-reset").addEventListener("click", () => {
    find("threshold-input").value = known.own;
    move(null);
  });
}

function move(to) {
  moved = to;
  showChanges();
  drawScores();
}

function showChanges() {
  const threshold = moved ?? known.own;
  const { rejected, accepted } = changes(known, threshold);
  find("threshold-value").textContent = score(threshold);
  find("threshold-input").setAttribute("aria-valuetext", `${score(threshold)}: ${summary(rejected, accepted)}`);
  find("threshold-summary").textContent = summary(rejected, accepted);
  const [from, to] = known.between;
  const doubts = known.doubt ? "; scores are doubts here, and lower is better" : "";
  find("threshold-own").textContent = `This run's own lies between ${score(from)} and ${score(to)}${doubts}.`;
  find("threshold-reset").hidden = moved === null;
  mark(
    new Map([
      ...rejected.map((one) => [one, "would be rejected"]),
      ...accepted.map((one) => [one, "would be accepted"]),
    ]),
  );
}

function summary(rejected, accepted) {
  if (!rejected.length && !accepted.length) return "No verdict would change.";
  const parts = [
    rejected.length && `${plural(rejected.length, "accepted draft")} would be rejected`,
    accepted.length && `${plural(accepted.length, "rejected draft")} would be accepted`,
  ];
  return `${parts.filter(Boolean).join(", ")}.`;
}

function mark(flips) {
  const texts = new Map([...flips].map(([draft, text]) => [String(draft.number), text]));
  for (const row of document.querySelectorAll(".step")) {
    const text = texts.get(row.dataset.draft) ?? "";
    row.toggleAttribute("data-flipped", text !== "");
    row.querySelector(".flip").textContent = text;
  }
}

function drawScores() {
  const plot = find("threshold-scores");
  const width = Math.max(160, plot.clientWidth);
  const inset = 8; // half of the slider's thumb, so that dots and thumb stand in line
  const x = (value) => inset + ((value - known.low) / (known.high - known.low || 1)) * (width - 2 * inset);
  const at = x(moved ?? known.own);
  const dots = known.scored.map(({ verdict }, place) => {
    const [cx, cy] = [x(Math.min(known.high, Math.max(known.low, verdict.score))), 12 + (place % 4) * 7];
    return verdict.kind === "accept"
      ? s("circle", { class: "dot accepted", cx, cy, r: 3 })
      : s("path", { class: "dot rejected", d: `M${cx - 3} ${cy - 3}l6 6m0 -6l-6 6` });
  });
  plot.replaceChildren(
    s(
      "svg",
      { width, height: 44, "aria-hidden": "true" },
      s("line", { class: "threshold", x1: at, x2: at, y1: 2, y2: 42 }),
      dots,
    ),
  );
}
