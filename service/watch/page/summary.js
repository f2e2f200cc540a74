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
    ...ledger.sifted.map(({ path, drafts, accepted }) => [
      `accepted within ${path}`,
      `${percent(accepted / drafts)} of ${count(drafts)}`,
    ]),
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

const WITHIN = "Of these, within the pair";

function secondsTables(view, ledger) {
  const roles = rolesOf(ledger);
  const paths = ledger.nested.map(({ path }) => path);
  const title = h("caption", { class: "hidden" }, "Seconds that requests were open, by purpose and model");
  return [
    purposesTable(title, view, roles, (call) => call.role),
    ...(paths.length ? [purposesTable(h("caption", {}, WITHIN), view, paths, (call) => call.path)] : []),
    h("p", { class: "note" }, "Requests overlap: their sum may exceed the wall time."),
  ];
}

function purposesTable(caption, view, models, nameOf) {
  const found = secondsByPurpose(view.calls, models, nameOf).filter((one) => one.seconds.some((value) => value > 0));
  const sums = models.map((_, place) => found.reduce((sum, one) => sum + one.seconds[place], 0));
  const cell = (value) => (value ? seconds(value) : "–");
  const rows = found.map(({ purpose, seconds: spent }) => [purpose, spent.map(cell)]);
  return table(caption, models, [...rows, ["in all", sums.map(cell)]], true);
}

function tokensTables(ledger) {
  const title = h("caption", { class: "hidden" }, "Tokens and requests by model");
  const { nested } = ledger;
  return [
    accounts(
      rolesOf(ledger).map((role) => [role, ledger[role]]),
      title,
    ),
    ...(nested.length
      ? [
          accounts(
            nested.map((one) => [one.path, one]),
            h("caption", {}, WITHIN),
          ),
        ]
      : []),
  ];
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

function accounts(columns, caption) {
  const shownRows = ROWS.filter(([, key]) => key !== "failed" || columns.some(([, account]) => account.failed));
  return table(
    caption,
    columns.map(([name]) => name),
    shownRows.map(([name, key]) => [name, columns.map(([, account]) => count(account[key]))]),
    true,
  );
}

// The columns of *models* have their marks.
function table(caption, names, rows, models = false) {
  const head = h(
    "tr",
    {},
    h("td", {}),
    names.map((name) => h("th", { scope: "col" }, models && badge(name), " ", breaking(name))),
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
