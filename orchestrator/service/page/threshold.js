// Which verdicts would have been others at another threshold. Only verdicts with a score can be asked that.

const HIGH_IS_DOUBT = ["bild", "glimpse"]; // their score is a doubt: the higher, the worse

export function thresholds(view) {
  const scored = view.drafts.filter((one) => Number.isFinite(one.verdict?.score));
  if (!scored.length) return null;
  const doubt = HIGH_IS_DOUBT.includes(view.policy);
  const scores = scored.map((one) => one.verdict.score);
  const [low, high] = range(view.policy, scores);
  const between = gap(scored, doubt, low, high);
  return { scored, doubt, low, high, step: (high - low) / 200, between, own: inside(between) };
}

export const passes = (score, threshold, doubt) => (doubt ? score <= threshold : score >= threshold);

// Verdicts that this score did not decide (another reason did) would not change with its threshold.
export function changes({ scored, doubt, own }, threshold) {
  const differing = scored.filter(({ verdict }) => {
    const accepted = passes(verdict.score, own, doubt);
    return accepted === (verdict.kind === "accept") && accepted !== passes(verdict.score, threshold, doubt);
  });
  return {
    rejected: differing.filter((one) => one.verdict.kind === "accept"),
    accepted: differing.filter((one) => one.verdict.kind === "rollback"),
  };
}

function range(policy, scores) {
  if (policy === "specreason") return [0, 9];
  const most = Math.max(...scores);
  const least = Math.min(...scores);
  if (least >= 0 && most <= 1) return [0, 1];
  return [Math.min(0, least), Math.ceil(most * 1.1)];
}

// The threshold itself is not in a trace, but its verdicts say between which two scores it lies. A draft may be
// rejected for another reason than its score, but hardly accepted for one: accepted drafts say more.
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
