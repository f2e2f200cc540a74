// Where the tokens and the seconds went, by model: the same sums as the library's own ledger.

const NOTHING = {
  kept: 0,
  discarded: 0,
  judging: 0,
  prompt: 0,
  cached: 0,
  requests: 0,
  failed: 0,
  writing: 0,
  judged: 0,
};

export function ledgerOf(view) {
  const accounts = Object.fromEntries(
    ["small", "large", "critic"].map((role) => [role, account(view, role)]),
  );
  const isAccepted = (verdict) => verdict?.kind === "accept" && verdict.judged;
  const byVerdict = (one) => one.author === "small" && one.fate === "kept" && isAccepted(one.verdict);
  const accepted = view.drafts.filter((one) => byVerdict(one) || one.repair?.chosen).length;
  const drafts = accepted + view.drafts.filter((one) => one.repair && !one.repair.chosen).length;
  const { small, large } = accounts;
  const kept = small.kept + large.kept;
  const discarded = small.discarded + large.discarded;
  return {
    ...accounts,
    accepted,
    drafts,
    acceptRate: drafts ? accepted / drafts : null,
    shareLarge: kept ? large.kept / kept : 0,
    waste: kept + discarded ? discarded / (kept + discarded) : 0,
    seconds: view.finished?.seconds ?? view.at,
  };
}

const PURPOSES = {
  draft: "drafting",
  verify: "judging",
  repair: "repairing",
  hedge: "repairing",
  answer: "answer",
};

// The seconds that the requests of each of the *roles* were open, by the purpose of the request. They may overlap.
export function secondsByPurpose(calls, roles) {
  const purposes = [...new Set(Object.values(PURPOSES)), "other"];
  const sums = Object.fromEntries(purposes.map((purpose) => [purpose, roles.map(() => 0)]));
  for (const call of calls) {
    const place = roles.indexOf(call.role);
    if (place >= 0) sums[PURPOSES[call.purpose] ?? "other"][place] += call.seconds;
  }
  return purposes.map((purpose) => ({ purpose, seconds: sums[purpose] }));
}

function account(view, role) {
  const calls = view.calls.filter((call) => call.role === role);
  const sum = calls.reduce(charge, { ...NOTHING, kept: view.kept[role] ?? 0 });
  const written = calls.reduce((all, call) => all + (call.verb === "write" ? call.written : 0), 0);
  return { ...sum, discarded: Math.max(0, written - sum.kept) };
}

function charge(account, call) {
  const charged = {
    ...account,
    prompt: account.prompt + call.prompt,
    cached: account.cached + call.cached,
    requests: account.requests + 1,
    failed: account.failed + (call.fate === "failed" ? 1 : 0),
  };
  if (call.verb === "write") return { ...charged, writing: account.writing + call.seconds };
  const judging = account.judging + call.prompt - call.cached + call.written;
  return { ...charged, judging, judged: account.judged + call.seconds };
}
