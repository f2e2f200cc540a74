// The keys of the chain, which is one stop of the Tab key: the arrows go from row to row, and Enter opens one.

import { find } from "./element.js";

// *moved* hears of every row that is gone to; *opened* of every one that is to be opened or closed.
export function connectKeys(moved, opened) {
  find("steps").addEventListener("keydown", (event) => {
    const row = event.target.closest(".row");
    const next = { ArrowDown: row?.nextElementSibling, ArrowUp: row?.previousElementSibling }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" && event.target === row) opened(row);
    else if (next?.matches(".row")) goTo(next, moved);
    else return;
    event.preventDefault();
  });
}

function goTo(row, moved) {
  stopAt(row);
  row.focus();
  moved(row);
}

export function stopAt(row) {
  for (const one of find("steps").querySelectorAll(".row[tabindex='0']")) one.setAttribute("tabindex", "-1");
  row?.setAttribute("tabindex", "0");
}

export function keepStop() {
  if (!find("steps").querySelector(".row[tabindex='0']")) stopAt(find("steps").querySelector(".row"));
}
