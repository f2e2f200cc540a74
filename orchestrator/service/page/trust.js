// Whether the judge can be trusted still: what was promised of the method, and what was measured since.

import { count, percent, plural } from "./element.js";

// Each a sentence; a *bad* one needs somebody to do something.
export function trustSentences({ promise, drift, shadows, alternatives = [] }) {
  const sentences = [];
  if (promise) sentences.push({ name: "Calibrated", text: promised(promise), bad: false });
  if (drift) sentences.push(drifted(drift));
  for (const each of alternatives) {
    sentences.push({ name: "Calibrated as well", text: promised(each), bad: false });
    if (each.drift.drifted) sentences.push(unselected(each));
  }
  if (shadows) sentences.push({ name: "Shadow checks", text: checked(shadows), bad: false });
  return sentences;
}

const promised = ({ policy, option, value, max_loss, confidence }) =>
  `${policy} with ${option} ${value} loses at most ${share(max_loss)} of the problems to the large model, ` +
  `with ${share(confidence)} confidence.`;

const movedGrades = (method, { moved, grades }) =>
  `${percent(moved)} of ${count(grades)} fall into other bins than when ${method} was calibrated`;

function drifted(drift) {
  const { grades, least, drifted: bad } = drift;
  const name = bad ? "Grades have drifted" : "Grades since";
  if (grades === 0) return { name, text: "none yet.", bad };
  const change = movedGrades("it", drift);
  if (bad) return { name, text: `${change}. The promise may not hold: run “stepspec calibrate” again.`, bad };
  const verdict = grades < least ? `nothing is concluded from fewer than ${count(least)}` : "no drift";
  return { name, text: `${change}: ${verdict}.`, bad };
}

const unselected = ({ policy, drift }) => ({
  name: "Grades have drifted",
  text: `${movedGrades(policy, drift)}. It is not selected any more: run “stepspec calibrate” again.`,
  bad: true,
});

function checked({ checked: n, agreed, own_disputed, interval }) {
  if (!interval) return "none yet.";
  const [low, high] = interval.map(percent);
  return (
    `the large model calls ${percent(agreed / n)} of ${plural(n, "accepted step")} correct ` +
    `(95% interval ${low} to ${high}), and ${percent((n - own_disputed) / n)} of its own.`
  );
}

// Up to one place behind the point: a promise of half a percent is not one of a whole.
const share = (value) => `${Number((100 * value).toFixed(1))}%`;
