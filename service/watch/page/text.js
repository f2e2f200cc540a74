// The text of a step: whole, in the pieces of the models that wrote it, or marked where its repair differs.

import { difference } from "./diff.js";
import { badge, h } from "./element.js";
import { THINK_END } from "./trace.js";

const clean = (text) => text.replaceAll(THINK_END, "");

// A draft, and what of it is in the chain: the beginning of a rejected one may be.
export function draftText(draft) {
  const whole = clean(draft.text);
  if (!whole.trim()) return blankText(draft.text);
  if (draft.fate !== "rejected") return paragraph(trimmed(authoredParts(draft), whole).map(plain));
  const kept = draft.kept ? draft.text.slice(0, draft.kept.characters) : "";
  const [keptParts, rest] = split(trimmed(authoredParts(draft), whole), clean(kept).length - leading(whole));
  return paragraph([
    keptParts.length > 0 && [
      h("span", { class: "kept-text", "data-author": draft.author }, keptParts.map(plain)),
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
  const parts = cutBy(trimmed(authoredParts(repair), whole), marks);
  return paragraph([
    draft.kept && h("span", { class: "continues" }, h("span", { class: "hidden" }, "continues: "), "… "),
    parts.map(({ differs, parts }) => (differs ? h("ins", {}, parts.map(plain)) : parts.map(plain))),
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

function rejectedParts(parts, found) {
  if (!parts.length) return null;
  if (!found) return h("del", {}, parts.map(plain));
  return cutBy(parts, found.before).map(({ differs, parts: cut }) =>
    differs ? h("del", {}, cut.map(plain)) : cut.map(plain),
  );
}

// Of a pair, one part for each piece; otherwise the whole.
const authoredParts = ({ pieces, text }) =>
  (pieces.length ? pieces : [{ path: null, text }]).map((piece) => ({
    path: piece.path,
    text: clean(piece.text),
    begins: true,
  }));

// Without the white space around the whole.
function trimmed(parts, whole) {
  const [, rest] = split(parts, leading(whole));
  const [middle] = split(rest, whole.trim().length);
  return middle;
}

// The first *characters* of the parts, and the rest.
function split(parts, characters) {
  const [before, after] = [[], []];
  let left = Math.max(0, characters);
  for (const part of parts) {
    const head = part.text.slice(0, left);
    const tail = part.text.slice(head.length);
    if (head) before.push({ ...part, text: head });
    if (tail) after.push({ ...part, text: tail, begins: part.begins && !head.trim() });
    left -= head.length;
  }
  return [before, after];
}

// The parts under each of the *marks*, which divide the same text. The white space at their beginning is not marked.
function cutBy(parts, marks) {
  let rest = parts;
  const before =
    parts.reduce((sum, { text }) => sum + text.length, 0) - marks.reduce((sum, { text }) => sum + text.length, 0);
  const groups = [];
  const take = (characters, differs) => {
    const [head, tail] = split(rest, characters);
    if (head.length) groups.push({ differs, parts: head });
    rest = tail;
  };
  take(before, false);
  for (const { text, differs } of marks) {
    take(leading(text), false);
    take(text.length - leading(text), differs);
  }
  return groups;
}

const plain = ({ path, text, begins }) => (path === null ? text : piece(path, text, begins && text.trim()));

const piece = (path, text, begins) =>
  h(
    "span",
    { class: "piece", "data-author": path },
    begins && [badge(path), h("span", { class: "hidden" }, `${path}: `)],
    text,
  );
