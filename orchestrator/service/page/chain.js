// The chain: every draft in the order in which it was written, and what became of it.

import { badge, h, keyed, plural, score, seconds } from "./element.js";
import { THINK_END } from "./trace.js";

const FATES = {
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

export function showChain(list, view) {
  const label = view.policy === "specreason" ? "grade" : "score";
  const notices = view.notices.map((notice) => ({ ...notice, key: `n${notice.number}` }));
  const items = view.drafts.flatMap((draft, place) => [...notices.filter((one) => one.after === place), draft]);
  items.push(...notices.filter((one) => one.after >= view.drafts.length));
  keyed(
    list,
    items,
    (item) => item.key ?? `d${item.number}`,
    (item) => (item.key ? noticeRow(item) : draftRow(item, label)),
  );
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

function draftRow(draft, label) {
  const attributes = {
    class: "step",
    "data-fate": draft.fate,
    "data-author": draft.author,
    "data-draft": draft.number,
  };
  const repair = draft.repair && attemptBlock({ ...draft.repair, fate: "repair" }, repairMeta(draft.repair));
  return h("li", attributes, attemptBlock(draft, draftMeta(draft, label)), repair);
}

function attemptBlock(step, meta) {
  const colour = step.fate === "kept" || step.fate === "repair";
  return h(
    "div",
    { class: "attempt", "data-author": step.author, "data-fate": step.fate, "data-solid": colour },
    badge(step.author),
    h(
      "div",
      {},
      h("p", { class: "meta" }, meta),
      stepText(step),
      step.rejectedWithin?.length > 0 && rejectedDrafts(step.rejectedWithin),
    ),
  );
}

function stepText(step) {
  const text = step.text.replaceAll(THINK_END, "").trim();
  if (!text)
    return h("p", { class: "text blank" }, step.text.includes(THINK_END) ? "(closes the thinking)" : "(blank)");
  if (step.pieces.length) return piecedText(step);
  if (step.fate !== "rejected") return h("p", { class: "text" }, text);
  const kept = step.kept ? step.text.slice(0, step.kept.characters) : "";
  const struck = step.text.slice(kept.length).replaceAll(THINK_END, "").trimEnd();
  return h(
    "p",
    { class: "text" },
    kept && h("span", { class: "kept-text", "data-author": step.author }, kept.trimStart()),
    h("del", {}, kept ? struck : struck.trimStart()),
  );
}

// Of a pair: every piece with the mark of the model that wrote it.
function piecedText(step) {
  const { pieces, fate, kept, author } = step;
  const [keptPieces, struck] = cutAt(pieces, fate === "rejected" ? (kept?.characters ?? 0) : Infinity);
  const keptText = keptPieces.map(piece);
  return h(
    "p",
    { class: "text" },
    fate !== "rejected" && keptText,
    fate === "rejected" && keptText.length > 0 && h("span", { class: "kept-text", "data-author": author }, keptText),
    struck.length > 0 && h("del", {}, struck.map(piece)),
  );
}

const piece = ({ path, text }) =>
  h("span", { class: "piece", "data-author": path }, badge(path), h("span", { class: "hidden" }, `${path}: `), text);

// The first *characters* of the pieces, and the rest, as they are shown: without the white space around the whole.
function cutAt(pieces, characters) {
  const shown = pieces.map(({ path, text }) => ({ path, text: text.replaceAll(THINK_END, "") }));
  const whole = shown.map(({ text }) => text).join("");
  const [from, to] = [whole.length - whole.trimStart().length, whole.trimEnd().length];
  const between = (first, last) => {
    let at = 0;
    const cut = shown.map(({ path, text }) => {
      const begins = at;
      at += text.length;
      return { path, text: text.slice(Math.max(0, first - begins), Math.max(0, last - begins)) };
    });
    return cut.filter(({ text }) => text);
  };
  const middle = Math.min(Math.max(from, characters), to);
  return [between(from, middle), between(middle, to)];
}

// Drafts that a pair judged and rejected while it made a step: folded, because the step does not contain them.
function rejectedDrafts(drafts) {
  const row = ({ path, text, kept, score: doubt, reason }) =>
    h(
      "li",
      { "data-author": path },
      h(
        "p",
        { class: "meta" },
        badge(path),
        part(path, "author"),
        part(kept ? "kept in part" : "rejected", "fate"),
        Number.isFinite(doubt) && part(`score ${score(doubt)}`, "grade"),
        reason && part(reason, "reason"),
      ),
      h("p", { class: "text" }, text.slice(0, kept).trimStart(), h("del", {}, text.slice(kept).trimEnd())),
    );
  return h(
    "details",
    { class: "rejected-drafts" },
    h("summary", {}, `${plural(drafts.length, "draft")} fell within`),
    h("ul", {}, drafts.map(row)),
  );
}

const part = (text, kind = "") => h("span", { class: kind }, text);

function draftMeta(draft, label) {
  const { verdict } = draft;
  const partly = draft.fate === "rejected" && draft.kept;
  return [
    part(`${draft.index + 1}`, "place"),
    part(draft.author, "author"),
    part(partly ? "kept in part" : FATES[draft.fate], "fate"),
    Number.isFinite(verdict?.score) && part(`${label} ${score(verdict.score)}`, "grade"),
    verdict?.reason && verdict.reason !== label && part(verdict.reason, "reason"),
    part("", "flip"),
    part(`${plural(draft.tokens, "token")}, ${seconds(draft.kept?.at ?? verdict?.at ?? draft.at)}`, "number"),
  ];
}

function repairMeta(repair) {
  return [
    part(`${repair.index + 1}`, "place"),
    part(repair.author, "author"),
    part(`${repair.chosen ? "rival" : "repair"}${repair.kept === null ? ", not committed" : ""}`, "fate"),
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
