// When each model was busy, in which row of its lane, and with which step, as far as the events let us know.

import { cheapestFirst } from "./ledger.js";
import { ownWithin } from "./within.js";

const SLACK = 0.02; // seconds between what a request says and what the step that it made says
const PARTIES = ["small", "large", "critic"];

// One lane for each model; a pair has none of its own, once its models are known.
export function lanesOf(view) {
  const spans = spansOf(view);
  const known = [...Object.keys(view.models), ...spans.map((span) => span.model)];
  const models = PARTIES.flatMap((role) => {
    const within = cheapestFirst(known.filter((path) => path.startsWith(`${role}.`)));
    return within.length ? within : [role];
  });
  const rows = (model) => pack(spans.filter((span) => span.model === model));
  const lanes = models.map((model) => ({ model, rows: rows(model) }));
  return lanes.filter(({ model, rows }) => view.models[model] || rows.length);
}

// A lane needs a second row only where two requests were open at the same time.
function pack(spans) {
  const rows = [];
  for (const span of spans.toSorted((a, b) => a.started - b.started)) {
    const row = rows.find((one) => one.at(-1).ended <= span.started + 1e-6);
    if (row) row.push(span);
    else rows.push([span]);
  }
  return rows;
}

export function spansOf(view) {
  const spans = view.calls.map((call, place) => ({
    ...call,
    place,
    model: call.path || call.role,
    ended: call.started + call.seconds,
    kind: call.verb === "write" ? "write" : "judge",
    parts: [],
  }));
  for (const draft of view.drafts) ownWriting(spans, draft);
  ownVerifying(
    spans.filter((span) => span.kind === "judge" && !span.path),
    view.drafts,
    "done",
  );
  for (const draft of view.drafts) ownRepair(spans, draft);
  ownAnswer(spans, view.answer);
  ownWithin(spans, view);
  // Some methods also write to judge: what of it was no repair was for nothing.
  const unclaimed = (span) => span.kind === "write" && span.fate === "done" && !span.path && !span.parts.length;
  const left = spans.filter(unclaimed);
  ownVerifying(left, view.drafts, "discarded");
  return spans.map((span) => ({ ...span, parts: filled(span) }));
}

// The one model that wrote a step by itself, if one did.
function writer({ author, pieces, judged }) {
  if (!pieces.length) return author;
  return pieces.length === 1 && !judged ? pieces[0].path : null;
}

// A stream that was kept open wrote several drafts: each of them is one part of it.
function ownWriting(spans, draft) {
  const open = (span) => span.started < draft.at && span.ended >= draft.at - SLACK;
  const span = spans.findLast((one) => one.kind === "write" && one.model === writer(draft) && open(one));
  if (!span) return;
  const from = span.parts.at(-1)?.to ?? span.started;
  span.parts.push({ from, to: Math.min(draft.at, span.ended), draft: draft.number, what: "draft", fate: draft.fate });
}

// A judgement lies between its draft and its verdict. Where it lies between several, it belongs to the draft (or the
// judgement of one) that was over last before it began.
function ownVerifying(spans, drafts, fate) {
  const judged = drafts.filter((draft) => draft.verdict).map((draft) => ({ draft, ready: draft.at }));
  for (const span of spans.toSorted((a, b) => a.started - b.started)) {
    const fits = ({ draft, ready }) => ready <= span.started + 1e-3 && span.ended <= draft.verdict.at + SLACK;
    const last = judged
      .filter(fits)
      .toSorted((a, b) => a.ready - b.ready)
      .at(-1);
    if (!last) continue;
    last.ready = span.ended;
    whole(span, { draft: last.draft.number, what: "verdict", fate });
  }
}

function ownRepair(spans, draft) {
  if (!draft.repair) return;
  const free = (span) => span.kind === "write" && span.model === writer(draft.repair) && !span.parts.length;
  const fits = (span) =>
    free(span) && span.fate === "done" && span.ended <= draft.repair.at + SLACK && span.ended > draft.at;
  const span = spans.findLast(fits);
  if (span) whole(span, { draft: draft.number, what: "repair", fate: "kept" });
}

function ownAnswer(spans, answer) {
  if (!answer?.at) return;
  const fits = (span) =>
    span.kind === "write" && span.model === writer(answer) && span.fate === "done" && !span.parts.length;
  const span = spans.findLast((one) => fits(one) && one.ended <= answer.at + SLACK);
  if (span) whole(span, { draft: null, what: "answer", fate: "kept" });
}

const whole = (span, part) => span.parts.push({ from: span.started, to: span.ended, ...part });

// What no step owns: the tail of a stream that was cancelled, or the whole of a request for nothing.
function filled(span) {
  const from = span.parts.at(-1)?.to ?? span.started;
  const rest = {
    from,
    to: span.ended,
    draft: null,
    what: null,
    fate: span.fate === "done" ? (span.rest ?? "unknown") : span.fate,
  };
  return span.ended - from > 1e-3 || !span.parts.length ? [...span.parts, rest] : span.parts;
}
