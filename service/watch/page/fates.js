// What became of what was written: the same few words for drafts, for requests, and for their sums.

export const FATES = {
  kept: "kept",
  repaired: "repaired",
  rejected: "rejected",
  lost: "lost bet",
};

// The fate of a *part* of a request; null for what was written in vain otherwise, as the tail of a cancelled stream.
export function fateOfPart({ what, fate }) {
  if (fate === "kept") return what === "repair" ? "repaired" : "kept";
  if (fate === "unused") return "lost";
  return fate in FATES ? fate : null;
}

// Seconds that requests were open, by what became of them. They overlap, so that the sum may exceed the wall time.
export function secondsByFate(spans) {
  const sums = { kept: 0, repaired: 0, rejected: 0, lost: 0, other: 0, judging: 0 };
  for (const { kind, parts } of spans) {
    for (const part of parts) {
      sums[kind === "judge" ? "judging" : (fateOfPart(part) ?? "other")] += part.to - part.from;
    }
  }
  return sums;
}

// The tokens of the *ledger*, with its kept and its discarded ones by fate.
export function tokensByFate(view, ledger) {
  const models = [ledger.small, ledger.large, ledger.critic];
  const total = (key) => models.reduce((all, account) => all + account[key], 0);
  const sum = (list, value) => list.reduce((all, one) => all + value(one), 0);
  const repaired = sum(view.drafts, ({ repair }) => (repair?.kept != null ? repair.tokens : 0));
  const cutOff = (draft) => Math.max(0, draft.tokens - (draft.kept?.tokens ?? 0));
  const discarded = (...fates) =>
    sum(
      view.drafts.filter((draft) => fates.includes(draft.fate)),
      cutOff,
    );
  const [rejected, lost] = [discarded("rejected"), discarded("lost", "unused")];
  const other = Math.max(0, total("discarded") - rejected - lost);
  return { kept: total("kept") - repaired, repaired, rejected, lost, other, judging: total("judging") };
}
