// Which verdicts would have been others at another threshold. Only verdicts with a score can be asked that.

import { roundUp } from "./axis.js";

const HIGH_IS_DOUBT = ["bild", "glimpse", "reading"]; // their score is a doubt: the higher, the worse

// *own* is the run's own threshold; null if the trace does not have it. Its verdicts limit it to *between* in any case.
export function thresholds(view) {
  const scored = view.drafts.filter((one) => Number.isFinite(one.verdict?.score));
  if (!scored.length) return null;
  const doubt = HIGH_IS_DOUBT.includes(view.policy);
  const own = view.threshold?.value ?? null;
  const scores = scored.map((one) => one.verdict.score);
  const [low, high] = range(view.policy, own === null ? scores : [...scores, own]);
  const between = gap(scored, doubt, low, high);
  const option = view.threshold?.option ?? "threshold";
  return { scored, doubt, low, high, step: high > low ? roundUp((high - low) / 200) : 1, between, own, option };
}

export const passes = (score, threshold, doubt) => (doubt ? score <= threshold : score >= threshold);

// Where the slider stands before it is moved: at the run's own threshold, or at one that gives the same verdicts.
export const usual = ({ own, between }) => own ?? inside(between);

// Verdicts that this score did not decide (another reason did) would not change with its threshold.
export function changes(known, threshold) {
  const { scored, doubt } = known;
  const differing = scored.filter(({ verdict }) => {
    const accepted = passes(verdict.score, usual(known), doubt);
    return accepted === (verdict.kind === "accept") && accepted !== passes(verdict.score, threshold, doubt);
  });
  return {
    rejected: differing.filter((one) => one.verdict.kind === "accept"),
    accepted: differing.filter((one) => one.verdict.kind === "rollback"),
  };
}

// The scores in *count* bins of the same width, each with its accepted and its rejected drafts.
export function bins({ scored, low, high }, count) {
  const found = Array.from({ length: count }, () => ({ accepted: 0, rejected: 0 }));
  for (const { verdict } of scored) {
    const share = (verdict.score - low) / (high - low || 1);
    const bin = found[Math.min(count - 1, Math.max(0, Math.floor(share * count)))];
    bin[verdict.kind === "accept" ? "accepted" : "rejected"] += 1;
  }
  return found;
}

function range(policy, scores) {
  if (policy === "specreason" || policy === "choose") return [0, 9];
  const most = Math.max(...scores);
  const least = Math.min(...scores);
  if (least >= 0 && most <= 1) return [0, 1];
  return [Math.min(0, least), Math.ceil(most * 1.1)];
}

// Between which two scores the verdicts put the threshold. A draft may be rejected for another reason than its score,
// but hardly accepted for one: accepted drafts say more.
function gap(scored, doubt, low, high) {
  const bounds = [...new Set([low, ...scored.map((one) => one.verdict.score), high])].sort((a, b) => a - b);
  const gaps = bounds.slice(1).map((end, place) => [bounds[place], end]);
  const against = ([from, to], { kind, score }) => {
    const accepted = kind === "accept";
    return passes(score, (from + to) / 2, doubt) === accepted ? 0 : accepted ? 2 : 1;
  };
  const wrong = (one) => scored.reduce((sum, { verdict }) => sum + against(one, verdict), 0);
  return gaps.reduce((best, one) => (wrong(one) < wrong(best) ? one : best), gaps[0] ?? [low, high]);
}

function inside([from, to]) {
  const middle = (from + to) / 2;
  const round = [1, 0.5, 0.1, 0.05, 0.01].map((unit) => Math.round(middle / unit) * unit);
  return round.find((value) => value > from && value < to) ?? middle;
}
