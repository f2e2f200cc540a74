// What a run looks like after each of its events: a pure function, whether the events come live or from a file.

import { THINK_END } from "./trace.js";

export const EMPTY = Object.freeze({
  at: 0,
  messages: [],
  policy: "",
  threshold: null, // of the policy, by option and value; null if it has none, and in traces without it
  models: {},
  drafts: [], // every step that was ever written, in the order in which they appeared
  calls: [],
  notices: [],
  decided: null, // the last decision about who writes on: the method or the large model alone
  restarts: [], // when drafting began anew, after a repair or the choice of a rival
  committed: 0, // steps
  kept: { small: 0, large: 0 }, // tokens in the chain and the answer, by author
  answer: null,
  finished: null,
});

export function reduce(view, event) {
  const next = REDUCERS[event.event];
  const current = { ...view, at: Math.max(view.at, event.at) };
  return next ? next(current, event) : current;
}

// JSON has no infinities: a trace has them as words.
const number = (value) => (value === null || value === undefined ? null : Number(value));

const written = (step) => ({
  text: step.text,
  author: step.author,
  tokens: step.tokens.length,
  ends: step.stop === "end",
});

const changed = (list, place, patch) => list.with(place, { ...list[place], ...patch });

const isPending = (draft) => ["drafted", "accepted", "rejected"].includes(draft.fate) && draft.kept === null;

function draftAs(view, index, step, at) {
  const draft = { number: view.drafts.length, index, period: view.restarts.length, ...written(step), at };
  return { ...draft, fate: "drafted", verdict: null, kept: null, repair: null };
}

const answerText = (text) => text.replaceAll(THINK_END, "").trim();

const REDUCERS = {
  Started(view, { messages, policy, models, threshold }) {
    const [option, value] = threshold ?? [];
    const known = threshold ? { option, value: number(value) } : null;
    return { ...view, messages, policy, models: Object.fromEntries(models), threshold: known };
  },

  Called: (view, call) => ({ ...view, calls: [...view.calls, { ...call, first: number(call.first) }] }),

  Drafted(view, { index, draft, at }) {
    return { ...view, drafts: [...view.drafts, draftAs(view, index, draft, at)] };
  },

  Judged(view, { index, draft, verdict, at }) {
    const place = view.drafts.findLastIndex((one) => one.index === index && one.text === draft.text && !one.verdict);
    if (place < 0) return view;
    const kind = "keep" in verdict ? "rollback" : "accept";
    const words = { reason: verdict.reason ?? "", detail: verdict.detail ?? "" };
    const judged = verdict.judged !== false; // traces before this field have none
    const known = { kind, score: number(verdict.score), ...words, judged, at };
    const fate = kind === "accept" ? "accepted" : "rejected";
    return { ...view, drafts: changed(view.drafts, place, { verdict: known, fate }) };
  },

  Lost(view, { index, draft, at }) {
    const place = view.drafts.findLastIndex((one) => one.index === index && one.text === draft.text && isPending(one));
    return place < 0 ? view : { ...view, drafts: changed(view.drafts, place, { fate: "lost", lostAt: at }) };
  },

  Chosen: (view, { index, step, at }) =>
    restarted(replaced(view, index, { index, ...written(step), at, chosen: true }), at),

  Repaired: (view, { index, step, rollback, at }) =>
    restarted(replaced(view, index - (rollback.keep ? 1 : 0), { index, ...written(step), at, chosen: false }), at),

  Committed: (view, { index, step, at }) => ({
    ...view,
    committed: view.committed + 1,
    kept: withKept(view.kept, step),
    drafts: committed(view, index, step, at),
  }),

  Answering: (view, { text }) => ({
    ...view,
    answer: { author: null, ...view.answer, text: (view.answer?.text ?? "") + text },
  }),

  Answered(view, { step, at }) {
    const kept = withKept(view.kept, step);
    const text = view.answer?.text || answerText(step.text);
    return { ...view, kept, answer: { ...written(step), text, at, index: view.committed } };
  },

  AnswerJudged(view, { step, accepted, reason, final, at }) {
    if (accepted === null) return noticed(view, at, "Nobody judged the answer.", "The verifier failed.");
    if (accepted) return noticed(view, at, "The verifier accepted the answer.", reason);
    const text = `The verifier rejected the answer${final ? "" : ", and the large model corrects it"}.`;
    return noticed(view, at, text, [reason, final ? "" : answerText(step.text)].filter(Boolean).join("\n\n"));
  },

  FellBack: (view, { stage, cause, fallback, at }) =>
    noticed(view, at, `The verifier failed; its fallback decided about the ${stage}: ${fallback}.`, cause),

  Decided(view, { choice, ahead, reason, figures, at }) {
    const decided = { choice, ahead };
    if (view.decided?.choice === choice) return { ...view, decided };
    if (!view.decided && choice === "method") return { ...view, decided };
    const text = choice === "large" ? "The large model goes on alone." : "The method goes on.";
    return noticed({ ...view, decided }, at, text, [reason, figures].filter(Boolean).join(": "));
  },



  Degraded: (view, { role, cause, at }) =>
    noticed(view, at, `The ${role} model failed; the run goes on without it.`, cause),

  Moved: (view, { role, url, to, cause, at }) =>
    noticed(view, at, `The ${role} model at ${url} failed; the run goes on at ${to}.`, cause),

  Finished(view, { reason, answer, seconds }) {
    const isUnused = (draft) => isPending(draft) && draft.fate !== "rejected";
    const drafts = view.drafts.map((draft) => (isUnused(draft) ? { ...draft, fate: "unused" } : draft));
    return { ...view, drafts, finished: { reason, answer, seconds } };
  },
};

function withKept(kept, step) {
  return { ...kept, [step.author]: (kept[step.author] ?? 0) + step.tokens.length };
}

// By a repair, or by a rival that was chosen.
function replaced(view, index, step) {
  const place = view.drafts.findLastIndex((one) => one.index === index && one.fate === "rejected" && !one.repair);
  return place < 0 ? view : { ...view, drafts: changed(view.drafts, place, { repair: { ...step, kept: null } }) };
}

const restarted = (view, at) => ({ ...view, restarts: [...view.restarts, at] });

function noticed(view, at, text, cause) {
  const notice = { number: view.notices.length, after: view.drafts.length, at, text, cause };
  return { ...view, notices: [...view.notices, notice] };
}

function committed(view, index, step, at) {
  const repaired = view.drafts.findLastIndex((one) => one.repair?.index === index && one.repair.kept === null);
  if (repaired >= 0 && view.drafts[repaired].repair.text === step.text) {
    return changed(view.drafts, repaired, { repair: { ...view.drafts[repaired].repair, kept: at } });
  }
  const continues = (draft) => draft.index === index && isPending(draft) && draft.text.startsWith(step.text);
  const place = view.drafts.findLastIndex(continues);
  const kept = { at, characters: step.text.length, tokens: step.tokens.length };
  if (place < 0) return [...view.drafts, { ...draftAs(view, index, step, at), fate: "kept", kept }];
  const fate = view.drafts[place].fate === "rejected" ? "rejected" : "kept";
  return changed(view.drafts, place, { fate, kept });
}
