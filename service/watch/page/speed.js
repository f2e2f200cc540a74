// How the run compares with the large model alone: an estimate, and what it is made from.

import { count, find, plural, seconds } from "./element.js";
import { estimateOf, LEAST } from "./estimate.js";

export function showSpeed(view) {
  const estimate = estimateOf(view);
  find("speed").hidden = estimate === null;
  if (estimate === null) return;
  const known = estimate.factor !== null;
  find("speed").toggleAttribute("data-unknown", !known);
  find("factor").textContent = known ? `${inDigits(estimate.factor)}×` : "Unknown";
  find("factor-says").textContent = known
    ? `as fast as the large model alone, estimated${view.finished ? "" : " so far"}`
    : "speed against the large model alone";
  find("factor-how").textContent = known ? explained(estimate) : missing(estimate);
}

const inDigits = (factor) => factor.toFixed(factor < 1 ? 2 : 1);

const explained = ({ tokens, pace, first, alone, kept, seconds: took }) =>
  `In this run the large model took ${(1000 * pace).toFixed(1)} ms a token, measured on ${count(tokens)}, and ` +
  `${seconds(first)} to its first one. Alone it would take ${seconds(alone)} for the ${plural(kept, "token")} that ` +
  `were kept; the run took ${seconds(took)}. A chain of its own might be shorter or longer.`;

const missing = ({ tokens }) =>
  `What a token of the large model takes is not known: this run timed ${plural(tokens, "token")} of it, and ` +
  `${LEAST} are needed.`;
