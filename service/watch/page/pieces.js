// What a pair of models made a step of: the pieces that are in it, by their authors, and the drafts that were rejected.

// The pieces of a step that one model wrote, joined where an author goes on; none where the author is no pair.
export function piecesOf(step) {
  const joined = [];
  for (const { path, text, tokens } of leavesOf(step, step.author)) {
    const last = joined.at(-1);
    if (last?.path === path) joined.splice(-1, 1, { path, text: last.text + text, tokens: last.tokens + tokens });
    else joined.push({ path, text, tokens });
  }
  return joined;
}

function leavesOf(step, path) {
  return (step.pieces ?? []).flatMap((piece) => {
    const own = `${path}.${piece.author}`;
    const within = leavesOf(piece, own);
    return within.length ? within : [{ path: own, text: piece.text, tokens: piece.tokens.length }];
  });
}

// The places of the verdicts that made a step what it is, those of the pair at *path* and of the pairs in it, each with
// the place of the verdict on what it was part of. The verdicts of a pair come in order, but do not name the write that
// they belong to: it is the last ones that fit the pieces of the step.
export function verdictsIn(verdicts, step, path = step.author, before = verdicts.length, part = null) {
  const pieces = step.pieces ?? [];
  if (!pieces.length) return [];
  const candidates = [...verdicts.keys()].filter((place) => place < before && free(verdicts[place], path));
  for (let start = candidates.length - 1; start >= 0; start--) {
    const run = fitting(verdicts, candidates, start, pieces);
    if (run) return run.flatMap((place) => [...madeOf(verdicts, place), { place, part }]);
  }
  return [];
}

const free = (verdict, path) => verdict.path === path && verdict.owner === null;

function madeOf(verdicts, place) {
  const { draft, path } = verdicts[place];
  return verdictsIn(verdicts, draft, `${path}.${draft.author}`, place, place);
}

function fitting(verdicts, candidates, start, pieces) {
  const run = [];
  for (let from = 0; from < pieces.length;) {
    const place = candidates[start + run.length];
    const came = place === undefined ? 0 : countPieces(verdicts[place], pieces[from], pieces[from + 1]);
    if (!came) return null;
    run.push(place);
    from += came;
  }
  return run;
}

// How many of the next pieces came of a verdict. The last one of a step may have been cut.
function countPieces({ acceptedText, draft, keep, reason }, first, second) {
  if (acceptedText !== null) return acceptedText.startsWith(first.text) ? 1 : 0;
  if (keep && !draft.text.startsWith(first.text)) return 0;
  const repair = keep ? second : first;
  const kept = keep ? 1 : 0;
  return !repair ? kept : repair.note === reason ? kept + 1 : 0;
}

export const isRejected = ({ acceptedText, draft }) => acceptedText !== draft.text;

// A rejected draft, as it is shown. Characters are counted as the library does: one for each code point.
export const rejectedDraft = ({ path, draft, keep, score, reason }) => ({
  path: `${path}.${draft.author}`,
  text: draft.text,
  kept: [...draft.text].slice(0, keep).join("").length,
  score,
  reason,
});
