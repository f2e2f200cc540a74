// Which steps the requests within a pair belong to. A request names its purpose there, and the step of the chain, but
// not which of the pair's own drafts it is for: the order of verdicts and requests decides, as far as it can.

import { isRejected } from "./pieces.js";

const AT_ONCE = 1e-3;

export const isRepair = ({ purpose }) => purpose === "repair" || purpose === "hedge";

export function ownWithin(spans, view) {
  for (const path of new Set(view.verdicts.map((verdict) => verdict.path))) {
    const judged = view.verdicts.filter((verdict) => verdict.path === path);
    const free = spans.filter((span) => span.fate !== "failed" && !span.parts.length);
    const drafts = free.filter((span) => span.purpose === "draft" && span.kind === "write");
    const begun = beginnings(view, path);
    const byLarge = free.filter((span) => span.path === `${path}.large` && span.fate === "done");
    const written = ownDrafts(drafts, judged, begun, view);
    const repairs = byLarge.filter((span) => isRepair(span) && span.kind === "write");
    ownRepairs(repairs, judged, begun, view);
    const judgements = byLarge.filter((span) => span.purpose === "verify" && span.kind === "judge");
    ownJudging(judgements, written);
    loseBets(drafts, path, begun, view);
  }
}

// When drafting began anew, because something was rejected: what had been drafted beyond it was lost.
function beginnings(view, path) {
  const outside = view.verdicts.filter((one) => isRejected(one) && `${path}.`.startsWith(`${one.path}.`));
  const repairs = view.drafts.filter((draft) => draft.repair).map((draft) => draft.repair.at);
  return [...outside.map((one) => one.at), ...repairs];
}

// A stream that was kept open wrote several drafts, one after the other. Where one ended, its tokens tell.
function ownDrafts(spans, judged, begun, view) {
  const writes = spans.toSorted((a, b) => a.started - b.started);
  const used = new Map();
  return judged.flatMap((verdict) => {
    const since = Math.max(-1, ...begun.filter((at) => at < verdict.at));
    const tokens = Math.max(1, verdict.draft.tokens.length);
    const author = `${verdict.path}.${verdict.draft.author}`;
    const fits = (span) =>
      span.path === author &&
      span.started >= since - AT_ONCE &&
      span.started < verdict.at &&
      (span.fate === "done" || span.ended >= verdict.at - AT_ONCE) &&
      span.written - (used.get(span) ?? 0) >= tokens;
    const span = writes.find(fits);
    if (!span) return [];
    const place = (used.get(span) ?? 0) + tokens;
    used.set(span, place);
    return [{ verdict, ...cut(span, place, verdict, fateOf(verdict, begun, view)) }];
  });
}

function cut(span, place, verdict, fate) {
  const from = span.parts.at(-1)?.to ?? span.started;
  const to = Math.max(from, Math.min(verdict.at, whenWritten(span, place)));
  const owned = { draft: verdict.owner, what: "draft" };
  const keptPart = isRejected(verdict) ? keptShare(verdict) : 1;
  const middle = from + keptPart * (to - from);
  if (keptPart > 0) span.parts.push({ from, to: middle, ...owned, fate });
  if (keptPart < 1) span.parts.push({ from: middle, to, ...owned, fate: "rejected" });
  return { ready: to, token: span.seconds / span.written };
}

const keptShare = ({ keep, draft }) => (draft.text ? keep / [...draft.text].length : 0);

function whenWritten({ started, ended, first, written }, place) {
  if (place >= written) return ended;
  const begun = started + (first ?? 0);
  return begun + ((ended - begun) * (place - 1)) / (written - 1);
}

// What was drafted to its end, and never judged, because something before it was rejected or the run was over.
function loseBets(spans, path, begun, view) {
  const last = view.finished ? Infinity : Math.max(-1, ...begun);
  for (const span of spans) {
    if (span.path === `${path}.small` && span.fate === "done" && span.ended < last) span.rest = "lost";
  }
}

function fateOf({ owner, part, at }, begun, view) {
  const whole = part === null ? null : view.verdicts[part];
  if (whole !== null) return isRejected(whole) && !whole.keep ? "rejected" : fateOf(whole, begun, view);
  if (owner !== null) return view.drafts[owner].fate;
  return view.finished || begun.some((later) => later > at) ? "lost" : "drafted"; // of a step that is not whole yet
}

function ownRepairs(spans, judged, begun, view) {
  judged.forEach((verdict, place) => {
    if (verdict.acceptedText !== null) return;
    const next = judged[place + 1]?.at ?? Infinity;
    const span = spans.find((one) => !one.parts.length && one.started >= verdict.at - AT_ONCE && one.started < next);
    if (!span) return;
    const fate = isGone(verdict, span, view) ? "rejected" : fateOf(verdict, begun, view);
    span.parts.push({ from: span.started, to: span.ended, draft: verdict.owner, what: "repair", fate });
  });
}

// A larger pair may keep the beginning of a step, and cut off all of the repair within.
function isGone({ owner }, span, view) {
  const pieces = owner === null ? [] : view.drafts[owner].pieces;
  return pieces.length > 0 && pieces.every((piece) => piece.path !== span.path);
}

// A judgement begins when its draft is complete, and its requests are reported before its verdict.
function ownJudging(spans, written) {
  for (const span of spans) {
    const fits = ({ ready, token, verdict }) => ready <= span.started + token && span.place < verdict.calls;
    const last = written.findLast(fits);
    if (!last || last.verdict.owner === null) continue;
    span.parts.push({ from: span.started, to: span.ended, draft: last.verdict.owner, what: "verdict", fate: "done" });
  }
}
