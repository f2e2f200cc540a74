// The keys that go through the chain. Keys of one letter can be turned off, because speech input may say them.

import { find } from "./element.js";

const STORED = "stepspec-keys";
const EDITABLE = "input, select, textarea, dialog, [contenteditable]";

let active = true;

// *moved* hears of every row that is gone to; *opened* of every one that is to be opened or closed.
export function connectKeys(moved, opened) {
  active = storedSetting() !== "off";
  find("single-keys").checked = active;
  find("single-keys").addEventListener("change", ({ target }) => {
    active = target.checked;
    storeSetting(active ? "on" : "off");
  });
  find("help").addEventListener("click", () => find("help-dialog").showModal());
  find("help-close").addEventListener("click", () => find("help-dialog").close());
  const commands = commandsFor(moved, opened);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest(EDITABLE)) return;
    const command = commands[event.key];
    if (!command || (event.key.length === 1 && !active)) return;
    if (command(event) !== false) event.preventDefault();
  });
}

function commandsFor(moved, opened) {
  const go = (by, matches) => (event) => goTo(event, by, matches, moved);
  const among = (command) => (event) => (currentRow(event) ? command(event) : false);
  return {
    j: go(1, ".row"),
    k: go(-1, ".row"),
    n: go(1, ".step[data-fate='rejected']"),
    p: go(-1, ".step[data-fate='rejected']"),
    ArrowDown: among(go(1, ".row")),
    ArrowUp: among(go(-1, ".row")),
    Enter: (event) => (event.target.matches(".row") ? opened(event.target) : false),
    f: () => find("only-rejected").click(),
    "?": () => find("help-dialog").showModal(),
  };
}

const rowsShown = () => [...find("steps").querySelectorAll(".row")];

const currentRow = ({ target }) => target.closest?.("#steps .row") ?? null;

// From the row that has the focus, otherwise from the one that had it last.
function goTo(event, by, matches, moved) {
  const rows = rowsShown();
  const from = currentRow(event) ?? find("steps").querySelector(".row[tabindex='0'][data-visited]");
  const rest = by > 0 ? rows.slice(rows.indexOf(from) + 1) : rows.slice(0, from ? rows.indexOf(from) : 0).reverse();
  const row = rest.find((one) => one.matches(matches));
  if (!row) return;
  stopAt(row);
  row.toggleAttribute("data-visited", true);
  row.focus();
  moved(row);
}

// The chain is one stop of the Tab key.
export function stopAt(row) {
  for (const one of find("steps").querySelectorAll(".row[tabindex='0']")) {
    one.setAttribute("tabindex", "-1");
    one.removeAttribute("data-visited");
  }
  row?.setAttribute("tabindex", "0");
}

export function keepStop() {
  if (!find("steps").querySelector(".row[tabindex='0']")) stopAt(find("steps").querySelector(".row"));
}

function storedSetting() {
  try {
    return localStorage.getItem(STORED);
  } catch {
    return null; // as of a page that was opened from a file
  }
}

function storeSetting(value) {
  try {
    localStorage.setItem(STORED, value);
  } catch {
    // then it holds until the page is closed
  }
}
