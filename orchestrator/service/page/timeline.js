// Both models' busy spans on one axis of time, so that what ran beside what can be seen.

import { badge, count, find, h, s, seconds } from "./element.js";
import { lanesOf } from "./spans.js";

const ROW = 18;
const SPACE = 4;
const AXIS = 22;
const LEFT = 4;

const VERBS = { write: "writes", score: "reads to judge", ask: "is asked to judge", rate: "rates" };
const PARTS = { draft: "draft of step", verdict: "verdict on step", repair: "repair of step" };

export function showTimeline(container, view, onSelect) {
  const width = Math.max(240, container.clientWidth);
  const last = Math.max(
    view.at,
    view.finished?.seconds ?? 0,
    ...view.calls.map((call) => call.started + call.seconds),
    0.001,
  );
  const x = (at) => LEFT + (at / last) * (width - 2 * LEFT);
  const lanes = lanesOf(view);
  let top = 0;
  const drawn = lanes.map((lane) => {
    const group = drawLane(lane, view, x, top);
    top += laneHeight(lane);
    return group;
  });
  const commits = drawCommits(view, x, top);
  const height = top + ROW + AXIS;
  const focused = container.querySelector("[tabindex='0']")?.dataset.place;
  const hadFocus = container.contains(document.activeElement);
  const svg = s(
    "svg",
    {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "group",
      "aria-label": `Requests to the models over ${seconds(last)}`,
    },
    s(
      "defs",
      {},
      lanes.map(({ model }) => hatch(model)),
    ),
    drawAxis(last, x, height),
    drawn,
    commits,
  );
  container.replaceChildren(svg);
  connectSpans(svg, onSelect, focused, hadFocus);
}

export const laneHeight = (lane) => Math.max(1, lane.rows.length) * (ROW + SPACE) + 22;

const hatch = (model) =>
  s(
    "pattern",
    { id: `hatch-${model}`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    s("rect", { width: 2, height: 6, class: "hatch", "data-author": model }),
  );

function drawLane({ model, rows }, view, x, top) {
  const label = s(
    "text",
    { class: "lane", x: LEFT, y: top + 14, "data-author": model },
    s("tspan", { class: "role" }, model),
    ` ${view.models[model] ?? ""}`,
  );
  const bars = rows.flatMap((spans, row) =>
    spans.flatMap((span) => drawSpan(span, view, x, top + 20 + row * (ROW + SPACE))),
  );
  return s("g", {}, label, bars);
}

function drawSpan(span, view, x, y) {
  return span.parts.map((part, place) => {
    const wide = Math.max(2, x(part.to) - x(part.from) - (place < span.parts.length - 1 ? 1 : 0));
    const text = describe(span, part, view);
    const wasted =
      span.fate === "failed" || ["lost", "rejected", "unused", "cancelled", "failed", "discarded"].includes(part.fate);
    const judging = span.kind === "judge";
    const bar = s("rect", {
      class: "span",
      x: x(part.from),
      y: judging ? y + 3 : y,
      width: wide,
      height: judging ? ROW - 6 : ROW,
      rx: 2,
      role: "img",
      tabindex: "-1",
      "aria-label": text,
      "data-author": span.model,
      "data-kind": span.kind,
      "data-fate": span.fate,
      "data-wasted": wasted && !judging,
      "data-draft": part.draft,
      "data-place": `${span.place}.${place}`,
    });
    if (wasted && !judging) bar.style.fill = `url("#hatch-${span.model}")`;
    return bar;
  });
}

export function describe(span, part, view) {
  const step = part.draft === null ? null : view.drafts[part.draft];
  const what = part.what === "answer" ? "the answer" : step ? `${PARTS[part.what]} ${step.index + 1}` : "";
  const fates = { lost: ", lost", rejected: ", rejected", unused: ", not used" };
  const prompt = `prompt ${count(span.prompt)} tokens, ${count(span.cached)} cached, ${count(span.written)} written`;
  const first = span.first === null ? "" : `, first token after ${seconds(span.first)}`;
  const fate = part.what === "draft" ? (fates[part.fate] ?? "") : "";
  return [
    `${span.model} ${VERBS[span.verb] ?? span.verb}${what && `: ${what}`}${fate}`,
    `${part.from.toFixed(2)} to ${seconds(part.to)}${first}`,
    `${prompt}, ${span.fate}${span.url ? `, ${span.url}` : ""}`,
  ].join(" · ");
}

function drawCommits(view, x, top) {
  const steps = view.drafts.flatMap((draft) => [
    draft.kept && { at: draft.kept.at, author: draft.author },
    draft.repair?.kept != null && { at: draft.repair.kept, author: draft.repair.author },
  ]);
  const marks = steps
    .filter(Boolean)
    .map(({ at, author }) =>
      s("line", { class: "commit", "data-author": author, x1: x(at), x2: x(at), y1: top + 2, y2: top + ROW - 4 }),
    );
  return s(
    "g",
    { "aria-hidden": "true" },
    s("line", { class: "rail", x1: x(0), x2: x(view.at), y1: top + ROW - 4, y2: top + ROW - 4 }),
    marks,
  );
}

function drawAxis(last, x, height) {
  const unit = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 600].find((one) => last / one <= 8) ?? 3600;
  const ticks = Array.from({ length: Math.floor(last / unit) + 1 }, (_, place) => place * unit);
  return s(
    "g",
    { "aria-hidden": "true" },
    ticks.map((at) => [
      s("line", { class: "tick", x1: x(at), x2: x(at), y1: 0, y2: height - AXIS + 4 }),
      s(
        "text",
        {
          class: "time",
          x: x(at),
          y: height - 4,
          "text-anchor": at === 0 ? "start" : x(last) - x(at) < 20 ? "end" : "middle",
        },
        `${+at.toFixed(2)} s`,
      ),
    ]),
  );
}

// One stop of the Tab key; from there the arrow keys go from span to span.
function connectSpans(svg, onSelect, focused, hadFocus) {
  const spans = [...svg.querySelectorAll(".span")];
  const start = spans.find((span) => span.dataset.place === focused) ?? spans[0];
  if (!start) return;
  start.setAttribute("tabindex", "0");
  if (hadFocus) start.focus();
  const select = (span) => onSelect(span?.getAttribute("aria-label") ?? null, span?.dataset.draft ?? null);
  for (const type of ["pointerover", "focusin", "click"]) {
    svg.addEventListener(type, (event) => event.target.matches(".span") && select(event.target));
  }
  svg.addEventListener("pointerout", (event) => event.target.matches(".span") && select(null));
  svg.addEventListener("focusout", () => select(null));
  svg.addEventListener("keydown", (event) => moveFocus(event, spans));
}

function moveFocus(event, spans) {
  const from = spans.indexOf(event.target);
  const places = { ArrowRight: from + 1, ArrowLeft: from - 1, Home: 0, End: spans.length - 1 };
  const span =
    event.key === "ArrowUp" || event.key === "ArrowDown" ? nearby(spans, event.target) : spans[places[event.key]];
  if (!span) return;
  event.preventDefault();
  for (const one of spans) one.setAttribute("tabindex", one === span ? "0" : "-1");
  span.focus();
}

// The span of another model that is nearest in time.
function nearby(spans, here) {
  const middle = (span) => Number(span.getAttribute("x")) + Number(span.getAttribute("width")) / 2;
  const distance = (span) => Math.abs(middle(span) - middle(here));
  const away = spans.filter((span) => span.dataset.author !== here.dataset.author);
  return away.toSorted((one, another) => distance(one) - distance(another))[0];
}

export function showModels(container, view) {
  const models = Object.entries(view.models).map(([role, name]) => h("li", {}, badge(role), `${role}: ${name}`));
  container.replaceChildren(...(view.policy ? [h("li", { class: "policy" }, view.policy), ...models] : []));
}

export function highlight(draft) {
  const on = draft !== null && draft !== undefined && draft !== "";
  document.documentElement.toggleAttribute("data-selecting", on);
  for (const element of document.querySelectorAll("[data-draft]")) {
    element.toggleAttribute("data-selected", on && element.dataset.draft === String(draft));
  }
  if (!on) find("details").textContent = find("details").dataset.hint;
}
