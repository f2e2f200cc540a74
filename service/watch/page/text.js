// The text of a step: whole, or marked where its repair differs.

import { difference } from "./diff.js";
import { h } from "./element.js";
import { THINK_END } from "./trace.js";

const clean = (text) => text.replaceAll(THINK_END, "");

// A draft, and what of it is in the chain: the beginning of a rejected one may be.
export function draftText(draft) {
  const whole = clean(draft.text);
  if (!whole.trim()) return blankText(draft.text);
  if (draft.fate !== "rejected") return paragraph(whole.trim());
  const kept = draft.kept ? draft.text.slice(0, draft.kept.characters) : "";
  const [keptText, rest] = split(whole.trim(), clean(kept).length - leading(whole));
  return paragraph([
    keptText.length > 0 && [
      h("span", { class: "kept-text", "data-author": draft.author }, keptText),
      rest.length > 0 && h("span", { class: "cut" }, h("span", { class: "hidden" }, " rejected from here: ")),
    ],
    rejectedParts(rest, comparison(draft)),
  ]);
}

// What stands in the place of a rejected draft. The beginning that was kept stands with the draft, once.
export function repairText(draft) {
  const { repair } = draft;
  const whole = clean(repair.text);
  if (!whole.trim()) return blankText(repair.text);
  const marks = comparison(draft)?.after ?? [{ text: whole.trim(), differs: false }];
  const parts = cutBy(whole.trim(), marks);
  return paragraph([
    draft.kept && h("span", { class: "continues" }, h("span", { class: "hidden" }, "continues: "), "… "),
    parts.map(({ differs, text }) => (differs ? h("ins", {}, text) : text)),
  ]);
}

const blankText = (text) =>
  h("p", { class: "text blank" }, text.includes(THINK_END) ? "(closes the thinking)" : "(blank)");

const paragraph = (children) => h("p", { class: "text" }, children);

const leading = (text) => text.length - text.trimStart().length;

const compared = new WeakMap();

// The difference of the rejected rest of a draft and of its repair; null if there is none, or nothing alike.
function comparison(draft) {
  if (!draft.repair) return null;
  if (!compared.has(draft)) {
    const rest = clean(draft.text.slice(draft.kept?.characters ?? 0)).trim();
    compared.set(draft, difference(rest, clean(draft.repair.text).trim()));
  }
  return compared.get(draft);
}

function rejectedParts(rest, found) {
  if (!rest) return null;
  if (!found) return h("del", {}, rest);
  return cutBy(rest, found.before).map(({ differs, text }) => (differs ? h("del", {}, text) : text));
}

// The first *characters* of *text*, and the rest.
function split(text, characters) {
  const place = Math.max(0, characters);
  return [text.slice(0, place), text.slice(place)];
}

// The parts of *whole* under each of the *marks*, which divide the same text. The white space at their beginning is
// not marked.
function cutBy(whole, marks) {
  let rest = whole;
  const groups = [];
  const take = (characters, differs) => {
    const [head, tail] = split(rest, characters);
    if (head) groups.push({ differs, text: head });
    rest = tail;
  };
  take(whole.length - marks.reduce((sum, { text }) => sum + text.length, 0), false);
  for (const { text, differs } of marks) {
    take(leading(text), false);
    take(text.length - leading(text), differs);
  }
  return groups;
}
