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

export function showLedger(container, view) {
  const ledger = ledgerOf(view);
  const figures = [
    ["wall time", seconds(ledger.seconds)],
    ["drafts accepted", ledger.drafts ? `${percent(ledger.acceptRate)} of ${ledger.drafts}` : "–"],
    ["by the large model", percent(ledger.shareLarge)],
    ["waste", percent(ledger.waste)],
  ];
  container.replaceChildren(
    h(
      "dl",
      { class: "figures" },
      figures.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
    ),
    fatesBar(ledger),
    accounts(ledger),
  );
}

function fatesBar({ small, large, critic }) {
  const parts = [
    ["small, kept", "small", small.kept, false],
    ["large, kept", "large", large.kept, false],
    ["small, discarded", "small", small.discarded, true],
    ["large, discarded", "large", large.discarded, true],
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

function accounts(ledger) {
  const roles = ["small", "large", "critic"].filter((role) => role !== "critic" || ledger.critic.requests);
  const head = h(
    "tr",
    {},
    h("td", {}),
    roles.map((role) => h("th", { scope: "col" }, role)),
  );
  const rows = ROWS.filter(([, key]) => key !== "failed" || roles.some((role) => ledger[role].failed)).map(
    ([name, key, format]) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, name),
        roles.map((role) => h("td", {}, format(ledger[role][key]))),
      ),
  );
  return h(
    "table",
    {},
    h("caption", { class: "hidden" }, "Tokens, requests and seconds by model"),
    h("thead", {}, head),
    h("tbody", {}, rows),
  );
}
