// How long the large model alone would have taken for the tokens that a run kept, from what it took for those it wrote.

export const LEAST = 16; // tokens of the large model, without which its pace is unknown

// Requests that end with what they write. A stream that stays open for the next draft also waits.
const TIMED = ["repair", "hedge", "answer", "verify"];

// *factor* is null while too little is known; null as a whole for a run that there is nothing to compare with.
export function estimateOf(view) {
  const kept = view.kept.small + view.kept.large;
  if (view.policy === "large" || !kept) return null;
  const calls = view.calls.filter(isTimed);
  const sum = (value) => calls.reduce((all, call) => all + value(call), 0);
  const tokens = sum((call) => call.written - 1); // the first one takes the time until it comes
  const seconds = view.finished?.seconds ?? view.at;
  if (tokens < LEAST || !seconds) return { factor: null, tokens, kept, seconds };
  const first = sum((call) => call.first) / calls.length;
  const pace = sum((call) => call.seconds - call.first) / tokens;
  const alone = first + (kept - 1) * pace;
  return { factor: alone / seconds, alone, first, pace, tokens, kept, seconds };
}

const isTimed = ({ role, verb, fate, purpose, first, written }) =>
  role === "large" &&
  verb === "write" &&
  fate === "done" &&
  TIMED.includes(purpose) &&
  first !== null &&
  written > 1;
