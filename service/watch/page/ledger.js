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
    ["small", "large", "critic"].map((role) => [role, account(view, role, (call) => call.role === role)]),
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
    nested: modelsWithin(view.calls).map((path) => ({ path, ...account(view, path, (call) => call.path === path) })),
    sifted: sifted(view.verdicts),
    accepted,
    drafts,
    acceptRate: drafts ? accepted / drafts : null,
    shareLarge: kept ? large.kept / kept : 0,
    waste: kept + discarded ? discarded / (kept + discarded) : 0,
    seconds: view.finished?.seconds ?? view.at,
  };
}

// The models within pairs that were called, by their paths, the cheapest first.
const modelsWithin = (calls) => cheapestFirst(calls.map((call) => call.path).filter(Boolean));

export const cheapestFirst = (paths) => [...new Set(paths)].sort().reverse();

// By its path, how many drafts each pair judged of its own smaller model's, and how many of them were accepted.
function sifted(all) {
  const verdicts = all.filter((one) => one.judged);
  const paths = [...new Set(verdicts.map((one) => one.path))].sort();
  return paths.map((path) => {
    const judged = verdicts.filter((one) => one.path === path);
    return { path, drafts: judged.length, accepted: judged.filter((one) => one.acceptedText !== null).length };
  });
}

const PURPOSES = {
  draft: "drafting",
  verify: "judging",
  repair: "repairing",
  hedge: "repairing",
  answer: "answer",
};

// The seconds that the requests of each of the *models* were open, by the purpose of the request. They may overlap.
export function secondsByPurpose(calls, models, nameOf) {
  const purposes = [...new Set(Object.values(PURPOSES)), "other"];
  const sums = Object.fromEntries(purposes.map((purpose) => [purpose, models.map(() => 0)]));
  for (const call of calls) {
    const place = models.indexOf(nameOf(call));
    if (place >= 0) sums[PURPOSES[call.purpose] ?? "other"][place] += call.seconds;
  }
  return purposes.map((purpose) => ({ purpose, seconds: sums[purpose] }));
}

function account(view, name, mine) {
  const calls = view.calls.filter(mine);
  const sum = calls.reduce(charge, { ...NOTHING, kept: view.kept[name] ?? 0 });
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
