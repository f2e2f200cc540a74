// The rows of the chain: drafts and notices in their order, with runs of accepted steps folded into one row each.

export const LONG = 24; // drafts from which on a chain is folded
const RUN = 4; // accepted steps in a row that are worth folding
const TAIL = 3; // the newest steps of a run that goes on stay in sight

export const wasRejected = ({ fate, repair }) => fate === "rejected" || repair !== null;

const isAccepted = (draft) => draft?.fate === "kept" && draft.repair === null;

// *opened* are the numbers of the first drafts of those folds that are open.
export function rowsOf(view, { onlyRejected = false, opened = new Set() } = {}) {
  const drafts = view.drafts.map((draft) => ({ kind: "draft", draft }));
  if (onlyRejected) return drafts.filter(({ draft }) => wasRejected(draft));
  const rows = placed(drafts, view.notices);
  return view.drafts.length < LONG ? rows : folded(rows, view.finished ? 0 : TAIL, opened);
}

function placed(drafts, notices) {
  const rows = [];
  let next = 0;
  const before = (place) => {
    while (next < notices.length && notices[next].after <= place)
      rows.push({ kind: "notice", notice: notices[next++] });
  };
  drafts.forEach((row, place) => {
    before(place);
    rows.push(row);
  });
  before(Infinity);
  return rows;
}

function folded(rows, tail, opened) {
  const result = [];
  let since = 0; // the second at which the chain before the run was complete
  for (let place = 0; place < rows.length;) {
    let end = place;
    while (isAccepted(rows[end]?.draft)) end++;
    const last = end === rows.length ? Math.max(place, end - tail) : end;
    if (last - place >= RUN) {
      const drafts = rows.slice(place, last).map(({ draft }) => draft);
      const fold = foldOf(drafts, since, opened);
      result.push(fold, ...(fold.open ? rows.slice(place, last) : []));
      since = drafts.at(-1).kept.at;
      place = last;
    } else {
      const { draft } = rows[place];
      since = draft?.repair?.kept ?? draft?.kept?.at ?? since;
      result.push(rows[place++]);
    }
  }
  return result;
}

function foldOf(drafts, since, opened) {
  const [first, last] = [drafts[0], drafts.at(-1)];
  return {
    kind: "fold",
    first: first.number,
    last: last.number,
    from: first.index,
    to: last.index,
    count: drafts.length,
    authors: [...new Set(drafts.map(({ author }) => author))],
    tokens: drafts.reduce((sum, { tokens }) => sum + tokens, 0),
    seconds: last.kept.at - since,
    open: opened.has(first.number),
  };
}
