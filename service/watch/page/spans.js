// When each model was busy, in which row of its lane, and with which step: a request names its purpose and its steps.

const PARTIES = ["small", "large", "critic"];

const isRepair = ({ purpose }) => purpose === "repair" || purpose === "hedge";

// One lane for each model.
export function lanesOf(view, spans = spansOf(view)) {
  const rows = (model) => pack(spans.filter((span) => span.model === model));
  const lanes = PARTIES.map((model) => ({ model, rows: rows(model) }));
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
    model: call.role,
    ended: call.started + call.seconds,
    kind: call.verb === "write" ? "write" : "judge",
  }));
  return spans.map((span) => ({ ...span, parts: filled(span, partsOf(span, view)) }));
}

// A step number is drafted once from one restart to the next, so that a request has the drafts of its own period.
function partsOf(span, view) {
  const period = periodOf(span, view);
  const drafts = view.drafts.filter((draft) => draft.period === period);
  const { purpose, step } = span;
  if (purpose === "draft") return draftsOf(span, drafts);
  if (purpose === "verify") return verdictOf(span, drafts.find((draft) => draft.index === step), view);
  if (purpose === "answer") return answerOf(span, view.answer);
  const repaired = drafts.find(({ repair }) => repair && !repair.chosen && repair.index === step);
  return isRepair(span) && repaired ? repairOf(span, repaired) : [];
}

// The times of events have microseconds, those of requests more digits.
const rounded = (seconds) => Math.round(seconds * 1e6) / 1e6;

const periodOf = (span, view) => view.restarts.filter((at) => at <= rounded(span.started)).length;

const authorsFate = (span, step, fate) => (span.model === step.author ? fate : "discarded");

const whole = (span, part) => {
  const fate = span.fate === "done" ? part.fate : span.fate;
  return [{ from: span.started, to: span.ended, ...part, fate }];
};

// A stream that was kept open wrote several drafts: each of them is one part of it.
function draftsOf(span, drafts) {
  const taken = drafts.filter(({ index }) => span.step <= index && index <= span.last_step);
  const parts = [];
  for (const draft of taken) {
    const from = parts.at(-1)?.to ?? span.started;
    const to = Math.max(from, Math.min(draft.at, span.ended));
    parts.push({ from, to, draft: draft.number, what: "draft", fate: authorsFate(span, draft, draft.fate) });
  }
  return parts;
}

// A policy may also write to judge. That is discarded, unless it became the repair: then no other request wrote that.
function verdictOf(span, draft, view) {
  if (!draft) return [];
  if (span.kind === "judge") return whole(span, { draft: draft.number, what: "verdict", fate: "done" });
  const { repair } = draft;
  const prepared = repair && !repair.chosen && repair.index === span.step && span.model === repair.author;
  if (prepared && span.fate === "done" && !view.calls.some((call) => repairs(call, draft, view))) {
    return repairOf(span, draft);
  }
  return whole(span, { draft: draft.number, what: "verdict", fate: "discarded" });
}

const repairs = (call, { period, repair }, view) =>
  isRepair(call) && call.fate === "done" && call.step === repair.index && periodOf(call, view) === period;

function repairOf(span, draft) {
  return whole(span, { draft: draft.number, what: "repair", fate: authorsFate(span, draft.repair, "kept") });
}

function answerOf(span, answer) {
  if (!answer?.at || answer.index !== span.step) return [];
  return whole(span, { draft: null, what: "answer", fate: authorsFate(span, answer, "kept") });
}

// What no step owns: the tail of a stream that was cancelled, or the whole of a request for nothing.
function filled(span, parts) {
  const from = parts.at(-1)?.to ?? span.started;
  const rest = {
    from,
    to: span.ended,
    draft: null,
    what: null,
    fate: span.fate === "done" ? "unknown" : span.fate,
  };
  return span.ended - from > 1e-3 || !parts.length ? [...parts, rest] : parts;
}
