// The chain: every draft in the order in which it was written, and what became of it.

import { badge, count, h, keyed, mark, plural, score, seconds } from "./element.js";
import { fateOfPart } from "./fates.js";
import { rowsOf } from "./folds.js";
import { draftText, repairText } from "./text.js";

const FATE_TEXTS = {
  drafted: "draft, not yet judged",
  accepted: "accepted, waits its turn",
  kept: "verified",
  rejected: "rejected",
  lost: "lost bet",
  unused: "not used",
};

const REASONS = {
  stop: "The thinking came to its end.",
  length: "Cut short: the budget of tokens or steps was spent.",
  time: "Cut short: the time was up.",
  repetition: "Cut short: the chain went round in circles.",
  context: "Cut short: a model's context was full.",
};

export const finishReason = (reason) => REASONS[reason] ?? `Ended: ${reason}.`;

let folds = new Map(); // those that are shown: a fold that has not changed keeps its element

export function showChain(list, view, options) {
  const label = view.policy === "specreason" ? "grade" : "score";
  const before = folds;
  folds = new Map();
  const items = rowsOf(view, options).map((row) => itemOf(row, before));
  const render = { draft: (draft) => draftRow(draft, label), notice: noticeRow, fold: foldRow };
  keyed(
    list,
    items,
    ({ key }) => key,
    ({ kind, value }) => render[kind](value),
    ({ value }) => value,
  );
  return { folded: folds.size > 0, open: [...folds.values()].every(({ open }) => open) };
}

function itemOf(row, before) {
  if (row.kind === "draft") return { kind: "draft", key: `d${row.draft.number}`, value: row.draft };
  if (row.kind === "notice") return { kind: "notice", key: `n${row.notice.number}`, value: row.notice };
  const old = before.get(row.first);
  const value = old?.last === row.last && old.open === row.open ? old : row;
  folds.set(row.first, value);
  return { kind: "fold", key: `f${row.first}`, value };
}

export function showProblem(container, messages) {
  keyed(
    container,
    messages,
    (message) => messages.indexOf(message),
    ({ role, content }) =>
      h(
        "div",
        { class: "message" },
        messages.length > 1 && h("span", { class: "message-role" }, role),
        h("p", { class: "text" }, content),
      ),
  );
}

function noticeRow({ at, text, cause }) {
  return h(
    "li",
    { class: "notice" },
    h("p", {}, h("strong", {}, text), ` ${cause} `, h("span", { class: "number" }, seconds(at))),
  );
}

function foldRow({ first, last, from, to, count: steps, authors, tokens, seconds: took, open }) {
  const what = authors.includes("large") && authors.length === 1 ? "steps of the large model" : "accepted steps";
  return h(
    "li",
    { class: "fold row", tabindex: "-1", "data-first": first, "data-last": last },
    h(
      "button",
      { type: "button", class: "fold-button", tabindex: "-1", "aria-expanded": String(open) },
      mark("kept"),
      authors.map(badge),
      h("span", { class: "fold-what" }, `${count(steps)} ${what}, ${took.toFixed(1)} s`),
      h("span", { class: "number" }, `${from + 1} to ${to + 1}, ${plural(tokens, "token")}`),
    ),
  );
}

function draftRow(draft, label) {
  const attributes = {
    class: "step row",
    tabindex: "-1",
    "data-fate": draft.fate,
    "data-author": draft.author,
    "data-draft": draft.number,
  };
  const repair =
    draft.repair && attemptBlock({ ...draft.repair, fate: "repair" }, repairMeta(draft.repair), repairText(draft));
  return h("li", attributes, attemptBlock(draft, draftMeta(draft, label), draftText(draft)), repair);
}

function attemptBlock(step, meta, text) {
  const colour = step.fate === "kept" || step.fate === "repair";
  return h(
    "div",
    { class: "attempt", "data-author": step.author, "data-fate": step.fate, "data-solid": colour },
    badge(step.author),
    h("div", {}, h("p", { class: "meta" }, meta), text),
  );
}

const part = (text, kind = "") => h("span", { class: kind }, text);

const fatePart = (fate, text) => h("span", { class: "fate", "data-fate": fate }, fate && mark(fate), text);

// The requests of a step are shown below it on demand.
const openButton = (text) =>
  h("button", { type: "button", class: "number requests-button", tabindex: "-1", "aria-expanded": "false" }, text);

function draftMeta(draft, label) {
  const { verdict } = draft;
  const partly = draft.fate === "rejected" && draft.kept;
  return [
    part(`${draft.index + 1}`, "place"),
    part(draft.author, "author"),
    fatePart(fateOfPart({ fate: draft.fate }), partly ? "kept in part" : FATE_TEXTS[draft.fate]),
    Number.isFinite(verdict?.score) && part(`${label} ${score(verdict.score)}`, "grade"),
    verdict?.reason && verdict.reason !== label && part(verdict.reason, "reason"),
    verdict?.detail && part(verdict.detail, "reason"),
    openButton(`${plural(draft.tokens, "token")}, ${seconds(draft.kept?.at ?? verdict?.at ?? draft.at)}`),
  ];
}

function repairMeta(repair) {
  const committed = repair.kept !== null;
  return [
    part(`${repair.index + 1}`, "place"),
    part(repair.author, "author"),
    fatePart(
      committed ? "repaired" : null,
      `${repair.chosen ? "rival" : "repair"}${committed ? "" : ", not committed"}`,
    ),
    part(`${plural(repair.tokens, "token")}, ${seconds(repair.at)}`, "number"),
  ];
}

export function showAnswer(container, view) {
  const { answer, finished } = view;
  const text = answer?.text ?? "";
  const finalAnswer = finished?.answer ?? "";
  container.replaceChildren(
    ...[
      finalAnswer &&
        h("p", { class: "final-answer" }, answer?.author && badge(answer.author), h("span", {}, finalAnswer)),
      text && ![finalAnswer, `\\boxed{${finalAnswer}}`].includes(text) && h("p", { class: "text" }, text),
      !finalAnswer && !text && h("p", { class: "text blank" }, "There is no answer."),
      finished && h("p", { class: "meta" }, part(finishReason(finished.reason)), part(seconds(finished.seconds))),
    ].filter(Boolean),
  );
}
