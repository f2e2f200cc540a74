// The ledger: what was kept, thrown away and spent on judging; for a run that is not over, so far.

import { count, h, percent, seconds } from "./element.js";
import { ledgerOf } from "./ledger.js";

const ROWS = [
  ["tokens kept", "kept", count],
  ["discarded", "discarded", count],
  ["judging", "judging", count],
  ["prompt tokens", "prompt", count],
  ["of these cached", "cached", count],
  ["requests", "requests", count],
  ["failed", "failed", count],
  ["time writing", "writing", seconds],
  ["time judging", "judged", seconds],
];
const UNDERNEATH = [
  ["drafted", ({ drafted }) => count(drafted)],
  ["accepted", ({ rate }) => (rate === null ? "–" : percent(rate))],
  ["tokens a pass", ({ length }) => (length === null ? "–" : length.toFixed(2))],
  ["looked at for", ({ since, until }) => seconds(until - since)],
  ["others there", ({ shared }) => (shared ? "yes" : "none known")],
];

export function showLedger(container, view) {
  const ledger = ledgerOf(view);
  const figures = [
    ["wall time", seconds(ledger.seconds)],
    ["drafts accepted", ledger.drafts ? `${percent(ledger.acceptRate)} of ${ledger.drafts}` : "–"],
    ...(ledger.skipped ? [["not judged", count(ledger.skipped)]] : []),
    ["by the large model", percent(ledger.shareLarge)],
    ["waste", percent(ledger.waste)],
    ...ledger.sifted.map(({ path, drafts, accepted }) => [
      `accepted within ${path}`,
      `${percent(accepted / drafts)} of ${count(drafts)}`,
    ]),
  ];
  container.replaceChildren(
    h(
      "dl",
      { class: "figures" },
      figures.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
    ),
    fatesBar(ledger),
    accounts(roles(ledger), h("caption", { class: "hidden" }, "Tokens, requests and seconds by model")),
    ...(ledger.nested.length ? [accounts(within(ledger), h("caption", {}, "Of these, within the pair"))] : []),
    ...(ledger.speculation.length ? [underneath(ledger.speculation)] : []),
  );
}

const roles = (ledger) =>
  ["small", "large", "critic"]
    .filter((role) => role !== "critic" || ledger.critic.requests)
    .map((role) => [role, ledger[role]]);

const within = (ledger) => ledger.nested.map((account) => [account.path, account]);

function fatesBar(ledger) {
  const { small, large, critic } = ledger;
  const writers = [...(ledger.nested.length ? within(ledger) : [["small", small]]), ["large", large]];
  const parts = [
    ...writers.map(([name, { kept }]) => [`${name}, kept`, name, kept, false]),
    ...writers.map(([name, { discarded }]) => [`${name}, discarded`, name, discarded, true]),
    ["judging", "judging", small.judging + large.judging + critic.judging, false],
  ].filter(([, , tokens]) => tokens);
  const share = ([, author, tokens, wasted]) => {
    const segment = h("span", { "data-author": author, "data-wasted": wasted });
    segment.style.flexGrow = tokens;
    return segment;
  };
  const legend = ([name, author, tokens, wasted]) =>
    h(
      "li",
      {},
      h("span", { class: "swatch", "data-author": author, "data-wasted": wasted }),
      `${name} ${count(tokens)}`,
    );
  return h(
    "div",
    { class: "fates" },
    h("div", { class: "bar", "aria-hidden": "true" }, parts.map(share)),
    h("ul", { class: "legend" }, parts.map(legend)),
  );
}

function accounts(columns, caption) {
  const shown = ROWS.filter(([, key]) => key !== "failed" || columns.some(([, account]) => account.failed));
  return table(
    caption,
    columns.map(([name]) => name),
    shown.map(([name, key, format]) => [name, columns.map(([, account]) => format(account[key]))]),
  );
}

// The counters are those of whole servers: nobody may take them for the run's own.
function underneath(models) {
  return table(
    h("caption", {}, "Meanwhile, token-level speculation in the servers"),
    models.map(({ name }) => name),
    UNDERNEATH.map(([name, tell]) => [name, models.map(tell)]),
  );
}

function table(caption, names, rows) {
  const head = h(
    "tr",
    {},
    h("td", {}),
    names.map((name) => h("th", { scope: "col" }, breaking(name))),
  );
  const row = ([name, cells]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, name),
      cells.map((cell) => h("td", {}, cell)),
    );
  return h("table", {}, caption, h("thead", {}, head), h("tbody", {}, rows.map(row)));
}

// A path may be cut at its points where it has no room.
const breaking = (path) => path.split(".").map((role, place) => (place ? [".", h("wbr"), role] : role));
