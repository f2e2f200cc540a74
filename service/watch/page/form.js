// What to run: the problem, the method, its options.

import { find, h } from "./element.js";

let offered = { methods: [], default: "" };

export function offerMethods(answer) {
  offered = answer;
  const named = answer.methods
    .filter((one) => one.name !== "auto")
    .map((one) => h("option", { value: one.name }, one.name));
  find("method").replaceChildren(h("option", { value: "auto" }, `auto (${answer.default})`), ...named);
  find("method").disabled = false;
  offerOptions();
}

export function offerOptions() {
  const name = find("method").value;
  const method = offered.methods.find((one) => one.name === (name === "auto" ? offered.default : name));
  find("about").textContent = method?.about ?? "";
  find("options").replaceChildren(...Object.entries(method?.options ?? {}).map(optionField));
}

function optionField([name, usual]) {
  const id = `option-${name}`;
  const usually = { "data-option": name, "data-usual": JSON.stringify(usual ?? null), id };
  const input =
    typeof usual === "boolean"
      ? h("input", { type: "checkbox", checked: usual, ...usually })
      : typeof usual === "number"
        ? h("input", { type: "number", step: "any", value: usual, ...usually })
        : h("input", {
            type: "text",
            value: typeof usual === "string" ? usual : usual === null ? "" : JSON.stringify(usual),
            ...usually,
          });
  return h("div", { class: "field" }, h("label", { for: id }, name.replaceAll("_", " ")), input);
}

// The request for POST /live: only what differs from what the service does anyway.
export function request() {
  const chosen = {};
  for (const input of document.querySelectorAll("[data-option]")) {
    const usual = JSON.parse(input.dataset.usual);
    const value = input.type === "checkbox" ? input.checked : read(input, usual);
    if (JSON.stringify(value) !== JSON.stringify(usual)) chosen[input.dataset.option] = value;
  }
  const ahead = find("ahead").value;
  const stepspec = { options: chosen, ...(ahead === "" ? {} : { ahead: Number(ahead) }) };
  return { problem: find("problem").value.trim(), model: find("method").value || "auto", stepspec };
}

function read(input, usual) {
  if (input.value === "") return usual;
  if (typeof usual === "number") return Number(input.value);
  if (typeof usual === "string") return input.value;
  try {
    return JSON.parse(input.value);
  } catch {
    return input.value;
  }
}
