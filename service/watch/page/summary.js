// The ledger: what each model spent its seconds or its tokens on, and what became of that; of a run that goes on, so far.

import { badge, count, h, mark, percent, score, seconds } from "./element.js";
import { FATES, secondsByFate, tokensByFate } from "./fates.js";
import { ledgerOf, secondsByPurpose } from "./ledger.js";

const ROWS = [
  ["tokens kept", "kept"],
  ["discarded", "discarded"],
  ["judging", "judging"],
  ["prompt tokens", "prompt"],
  ["of these cached", "cached"],
  ["requests", "requests"],
  ["failed", "failed"],
];
const BECAME = { ...FATES, other: "discarded otherwise", judging: "judging" };
// *unit* is "seconds" or "tokens".
export function showLedger(container, view, spans, unit) {
  const ledger = ledgerOf(view);
  const figures = [
    ["wall time", seconds(ledger.seconds)],
    ["drafts accepted", ledger.drafts ? `${percent(ledger.acceptRate)} of ${ledger.drafts}` : "–"],
    ["by the large model", percent(ledger.shareLarge)],
    ["waste", percent(ledger.waste)],
    ...(view.threshold ? [[view.threshold.option, score(view.threshold.value)]] : []),
  ];
  const tables = unit === "seconds" ? secondsTables(view, ledger) : tokensTables(ledger);
  container.replaceChildren(
    h(
      "dl",
      { class: "figures" },
      figures.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
    ),
    fatesBar(unit === "seconds" ? secondsByFate(spans) : tokensByFate(view, ledger), FORMATS[unit]),
    ...tables,
  );
}

const FORMATS = { seconds, tokens: count };

const rolesOf = (ledger) => ["small", "large", "critic"].filter((role) => role !== "critic" || ledger.critic.requests);

function secondsTables(view, ledger) {
  const roles = rolesOf(ledger);
  const title = h("caption", { class: "hidden" }, "Seconds that requests were open, by purpose and model");
  return [
    purposesTable(title, view, roles),
    h("p", { class: "note" }, "Requests overlap: their sum may exceed the wall time."),
  ];
}

function purposesTable(caption, view, roles) {
  const found = secondsByPurpose(view.calls, roles).filter((one) => one.seconds.some((value) => value > 0));
  const sums = roles.map((_, place) => found.reduce((sum, one) => sum + one.seconds[place], 0));
  const cell = (value) => (value ? seconds(value) : "–");
  const rows = found.map(({ purpose, seconds: spent }) => [purpose, spent.map(cell)]);
  return table(caption, roles, [...rows, ["in all", sums.map(cell)]], true);
}

function tokensTables(ledger) {
  const title = h("caption", { class: "hidden" }, "Tokens and requests by model");
  const roles = rolesOf(ledger);
  const shown = ROWS.filter(([, key]) => key !== "failed" || roles.some((role) => ledger[role].failed));
  const rows = shown.map(([name, key]) => [name, roles.map((role) => count(ledger[role][key]))]);
  return [table(title, roles, rows, true)];
}

// What became of all that was spent: its marks are those of the chain and of the time line.
function fatesBar(sums, format) {
  const parts = Object.entries(sums).filter(([, sum]) => sum > 0);
  const share = ([fate, sum]) => {
    const segment = h("span", { "data-fate": fate });
    segment.style.flexGrow = sum;
    return segment;
  };
  const legend = ([fate, sum]) =>
    h(
      "li",
      {},
      fate in FATES ? mark(fate) : h("span", { class: "swatch", "data-fate": fate }),
      `${BECAME[fate]} ${format(sum)}`,
    );
  return h(
    "div",
    { class: "fates" },
    h("div", { class: "bar", "aria-hidden": "true" }, parts.map(share)),
    h("ul", { class: "legend" }, parts.map(legend)),
  );
}

// The columns of *models* have their marks.
function table(caption, names, rows, models = false) {
  const head = h(
    "tr",
    {},
    h("td", {}),
    names.map((name) => h("th", { scope: "col" }, models && badge(name), " ", name)),
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
