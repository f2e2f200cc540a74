// The threshold, to be moved: which verdicts of this trace would have been others.

import { ticks } from "./axis.js";
import { count, find, plural, s, score } from "./element.js";
import { bins, changes, thresholds, usual } from "./threshold.js";

const INSET = 8; // half of the slider's thumb, so that the plot and the thumb stand in line
const TOP = 18; // the line of the thresholds' names
const HEIGHT = 70; // of the scores, at most
const LOWEST = 5; // drafts that have room in any case
const BIN = 7; // the width of one bin, and the height of one draft in it

let known = null;
let room = 0; // the width of the plot
let moved = null; // where somebody has put it

export function showThreshold(view, wide) {
  known = thresholds(view);
  room = Math.max(160, wide);
  find("threshold").hidden = known === null;
  if (known === null) return;
  const input = find("threshold-input");
  Object.assign(input, { min: known.low, max: known.high, step: known.step });
  input.value = moved ?? usual(known);
  showChanges();
  drawScores();
}

export function resetThreshold() {
  moved = null;
}

export function connectThreshold() {
  find("threshold-input").addEventListener("input", (event) => move(Number(event.target.value)));
  find("threshold-reset").addEventListener("click", () => {
    find("threshold-input").value = usual(known);
    move(null);
  });
}

function move(to) {
  moved = to;
  showChanges();
  drawScores();
}

function showChanges() {
  const threshold = moved ?? usual(known);
  const { rejected, accepted } = changes(known, threshold);
  const value = moved === null && known.own === null ? "–" : score(threshold);
  find("threshold-value").textContent = value;
  find("threshold-input").setAttribute("aria-valuetext", `${value}: ${summary(rejected, accepted)}`);
  find("threshold-summary").textContent = summary(rejected, accepted);
  find("threshold-own").textContent =
    `${ownThreshold()}${known.doubt ? " Scores are doubts here: lower is better." : ""}`;
  find("threshold-reset").hidden = moved === null;
  markFlips(
    new Map([
      ...rejected.map((one) => [one.number, "would be rejected"]),
      ...accepted.map((one) => [one.number, "would be accepted"]),
    ]),
  );
}

function ownThreshold() {
  if (known.own !== null) return `The run's own ${known.option} is ${score(known.own)}.`;
  const [from, to] = known.between.map(score);
  return `The trace does not contain the run's own threshold; its verdicts put it between ${from} and ${to}.`;
}

function summary(rejected, accepted) {
  if (!rejected.length && !accepted.length) return "No verdict would change.";
  const parts = [
    rejected.length && `${plural(rejected.length, "accepted draft")} would be rejected`,
    accepted.length && `${plural(accepted.length, "rejected draft")} would be accepted`,
  ];
  return `${parts.filter(Boolean).join(", ")}.`;
}

function markFlips(flips) {
  for (const row of find("steps").querySelectorAll(".step")) flip(row, flips.get(Number(row.dataset.draft)) ?? "");
  for (const row of find("steps").querySelectorAll(".fold")) {
    const [first, last] = [Number(row.dataset.first), Number(row.dataset.last)];
    const within = [...flips.keys()].filter((number) => first <= number && number <= last).length;
    flip(row, within ? `${count(within)} would change` : "");
  }
}

function flip(row, text) {
  const place = row.querySelector(".flip");
  if (place.textContent === text) return;
  place.textContent = text;
  row.toggleAttribute("data-flipped", text !== "");
}

function drawScores() {
  const wide = room - 2 * INSET;
  const x = (value) => INSET + ((value - known.low) / (known.high - known.low || 1)) * wide;
  const found = bins(known, Math.max(8, Math.floor(wide / BIN)));
  const most = Math.max(LOWEST, ...found.map(({ accepted, rejected }) => accepted + rejected));
  const scale = Math.min(BIN, HEIGHT / most);
  const bottom = TOP + most * scale;
  const accepted = known.scored.filter(({ verdict }) => verdict.kind === "accept").length;
  const label =
    `${plural(known.scored.length, "score")} from ${score(known.low)} to ${score(known.high)}: ` +
    `${count(accepted)} accepted, ${count(known.scored.length - accepted)} rejected`;
  find("threshold-scores").replaceChildren(
    s(
      "svg",
      { width: room, height: bottom + 20, viewBox: `0 0 ${room} ${bottom + 20}`, role: "img", "aria-label": label },
      scoreAxis(x, bottom),
      s("g", {}, drawBins(found, wide / found.length, bottom, scale)),
      drawThresholds(x, bottom),
    ),
  );
}

const scoreAxis = (x, bottom) => [
  s("line", { class: "rail", x1: x(known.low), x2: x(known.high), y1: bottom, y2: bottom }),
  ticks(known.low, known.high, 10).map((value) => [
    s("line", { class: "tick", x1: x(value), x2: x(value), y1: bottom, y2: bottom + 4 }),
    s("text", { class: "time", x: x(value), y: bottom + 16, "text-anchor": "middle" }, `${value}`),
  ]),
];

// One mark for each draft while they have room; then bars, on a scale from the fullest bin.
function drawBins(found, wide, bottom, scale) {
  const draw = scale < BIN ? drawBar : drawDots;
  return found.map(({ accepted, rejected }, place) =>
    draw(INSET + place * wide, wide, bottom, accepted, rejected, scale),
  );
}

function drawDots(x, wide, bottom, accepted, rejected, scale) {
  const dot = (_, place) => {
    const [cx, cy] = [x + wide / 2, bottom - 4 - place * scale];
    return place < rejected
      ? s("path", { class: "dot rejected", d: `M${cx - 2.5} ${cy - 2.5}l5 5m0 -5l-5 5` })
      : s("circle", { class: "dot accepted", cx, cy, r: 3 });
  };
  return Array.from({ length: accepted + rejected }, dot);
}

function drawBar(x, wide, bottom, accepted, rejected, scale) {
  const middle = bottom - rejected * scale;
  return [
    rejected > 0 &&
      s("rect", { class: "bin rejected", x: x + 1, y: middle, width: wide - 2, height: rejected * scale }),
    accepted > 0 &&
      s("rect", {
        class: "bin accepted",
        x: x + 0.5,
        y: middle - accepted * scale,
        width: wide - 1,
        height: accepted * scale,
      }),
  ];
}

function drawThresholds(x, bottom) {
  const { own } = known;
  return [
    own !== null && thresholdLine(x(own), bottom, moved === null ? `${known.option} ${score(own)}` : "own", "own"),
    moved !== null && thresholdLine(x(moved), bottom, moved === own ? "" : score(moved), "moved"),
  ];
}

function thresholdLine(at, bottom, name, which) {
  const anchor = at < 40 ? "start" : at > room - 40 ? "end" : "middle";
  return s(
    "g",
    { class: "threshold", "data-which": which },
    s("line", { x1: at, x2: at, y1: TOP - 4, y2: bottom }),
    s("text", { x: at, y: TOP - 8, "text-anchor": anchor }, name),
  );
}
