// Light, dark, or what the system says.

import { find } from "./element.js";

const THEMES = ["system", "light", "dark"];
const NAME = "stepspec-theme";

export function connectTheme() {
  show(stored());
  find("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    store(next);
    show(next);
  });
}

function show(theme) {
  document.documentElement.dataset.theme = theme;
  find("theme").textContent = `Theme: ${theme}`;
}

// A page that was opened from a file may have no storage.
function stored() {
  try {
    const theme = localStorage.getItem(NAME);
    return THEMES.includes(theme) ? theme : "system";
  } catch {
    return "system";
  }
}

function store(theme) {
  try {
    localStorage.setItem(NAME, theme);
  } catch {
    // then it holds until the page is closed
  }
}
