// Both models' busy spans on one axis of time, so that what ran beside what can be seen.

import { ticks } from "./axis.js";
import { badge, count, h, mark, markPath, s, seconds } from "./element.js";
import { fateOfPart, FATES } from "./fates.js";
import { hasMoved } from "./highlight.js";
import { lanesOf } from "./spans.js";

const ROW = 18;
const STRIP = 3; // below a bar: what became of it
const SPACE = 5;
const LABEL = 20; // the height of the name above a lane
const STEPS = LABEL + 28; // of the row of the steps, its name above the numbers
const AXIS = 22;
const LEFT = 4;
const DIGIT = 6.5; // the width of one in a bar
const MARK = 13;

const VERBS = { write: "writes", score: "reads to judge", ask: "is asked to judge", rate: "rates" };
const PARTS = { draft: "draft of step", verdict: "verdict on step", repair: "repair of step" };

// *wide* is the room that there is; at a *zoom* above 1 the plot is wider, and scrolls.
export function showTimeline(container, view, spans, wide, zoom, onSelect) {
  const width = Math.max(240, wide) * zoom;
  const last = Math.max(view.at, view.finished?.seconds ?? 0, ...spans.map((span) => span.ended), 0.001);
  const x = (at) => LEFT + (at / last) * (width - 2 * LEFT);
  const lanes = lanesOf(view, spans);
  let top = 0;
  const drawn = lanes.map((lane) => {
    const group = drawLane(lane, view, x, top);
    top += laneHeight(lane);
    return group;
  });
  const steps = drawSteps(view, x, top);
  const height = top + STEPS + AXIS;
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
    drawAxis(last, x, width, height),
    drawn,
    steps,
  );
  container.replaceChildren(svg);
  connectSpans(svg, onSelect, focused, hadFocus);
}

export const laneHeight = (lane) => Math.max(1, lane.rows.length) * (ROW + STRIP + SPACE) + LABEL;

const hatch = (model) =>
  s(
    "pattern",
    { id: `hatch-${model}`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    s("rect", { width: 2, height: 6, class: "hatch", "data-author": model }),
  );

function laneName(y, name, more, author) {
  const role = s("tspan", { class: "role" }, name);
  return s(
    "text",
    { class: author ? "lane" : "steps-name", x: LEFT, y: y + 14, "data-author": author },
    role,
    more && ` ${more}`,
  );
}

function drawLane({ model, rows }, view, x, top) {
  const bars = rows.flatMap((spans, row) =>
    spans.flatMap((span) => drawSpan(span, view, x, top + LABEL + row * (ROW + STRIP + SPACE))),
  );
  return s("g", {}, laneName(top, model, view.models[model], model), bars);
}

function drawSpan(span, view, x, y) {
  return span.parts.flatMap((part, place) => {
    const begin = x(part.from);
    const wide = Math.max(2, x(part.to) - begin - (place < span.parts.length - 1 ? 1 : 0));
    const judging = span.kind === "judge";
    const wasted = !judging && isWasted(span, part);
    const attributes = {
      class: "span",
      x: begin,
      y: judging ? y + 3 : y,
      width: wide,
      height: judging ? ROW - 6 : ROW,
      rx: 2,
      "stroke-width": judging ? Math.min(1.5, wide / 4) : 0,
      role: "img",
      tabindex: "-1",
      "aria-label": describe(span, part, view),
      "data-author": span.model,
      "data-kind": span.kind,
      "data-fate": span.fate,
      "data-wasted": wasted,
      "data-draft": part.draft,
      "data-place": `${span.place}.${place}`,
    };
    const bar = s("rect", attributes);
    if (wasted) bar.style.fill = `url("#hatch-${span.model}")`;
    const fate = judging ? null : fateOfPart(part);
    return [
      bar,
      fate && drawFate(fate, part.draft, begin, y, wide),
      drawNumber(part, fate, view, begin, y, wide, wasted, judging),
    ];
  });
}

const isWasted = (span, part) =>
  span.fate === "failed" || ["lost", "rejected", "unused", "cancelled", "failed", "discarded"].includes(part.fate);

const drawFate = (fate, draft, x, y, width) =>
  s("rect", { class: "strip", "data-fate": fate, "data-draft": draft, x, y: y + ROW + 1, width, height: STRIP });

// The number of the step, and the mark of its fate, where they have room.
function drawNumber(part, fate, view, x, y, wide, wasted, judging) {
  if (part.draft === null && part.what !== "answer") return null;
  const number = part.draft === null ? "answer" : `${stepOf(part, view)}`;
  const room = number.length * DIGIT + 4;
  if (wide < room) return null;
  const both = fate !== null && wide >= room + MARK;
  const middle = x + wide / 2 - (both ? MARK / 2 : 0);
  const look = { "data-on": judging ? "card" : wasted ? "hatch" : "fill" };
  return s(
    "g",
    { class: "inside", "aria-hidden": "true", "data-draft": part.draft, ...look },
    s("text", { x: middle, y: y + ROW / 2 + 4, "text-anchor": "middle" }, number),
    both && drawMark(fate, middle + (number.length * DIGIT) / 2 + 8, y + ROW / 2, wasted),
  );
}

// On a hatched bar the mark stands on the colour of the card, as the number does.
function drawMark(fate, x, y, wasted) {
  const transform = `translate(${x} ${y})`;
  return [wasted && markPath(fate, { transform, "data-halo": true }), markPath(fate, { transform })];
}

const stepOf = ({ draft, what }, view) => {
  const { index, repair } = view.drafts[draft];
  return 1 + (what === "repair" ? (repair?.index ?? index) : index);
};

export function describe(span, part, view) {
  const what =
    part.what === "answer" ? "the answer" : part.draft === null ? "" : `${PARTS[part.what]} ${stepOf(part, view)}`;
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

// When each step was committed: a tick for each, and its number where it has room.
function drawSteps(view, x, top) {
  const rail = top + STEPS - 4;
  let free = 0;
  const steps = committedSteps(view).map(({ at, author, index, draft }) => {
    const place = x(at);
    const number = `${index + 1}`;
    const half = (number.length * DIGIT) / 2;
    const fits = place - half >= free;
    if (fits) free = place + half + 5;
    return s(
      "g",
      { class: "commit", "data-author": author, "data-draft": draft },
      s("line", { x1: place, x2: place, y1: rail - 8, y2: rail }),
      fits && s("text", { x: place, y: rail - 12, "text-anchor": "middle" }, number),
    );
  });
  return s(
    "g",
    { "aria-hidden": "true" },
    laneName(top, "steps", "", null),
    s("line", { class: "rail", x1: x(0), x2: x(view.at), y1: rail, y2: rail }),
    steps,
  );
}

function committedSteps(view) {
  const steps = view.drafts.flatMap(({ index, author, number: draft, kept, repair }) => [
    kept && { at: kept.at, author, index, draft },
    repair?.kept != null && { at: repair.kept, author: repair.author, index: repair.index, draft },
  ]);
  return steps.filter(Boolean).sort((one, other) => one.at - other.at);
}

function drawAxis(last, x, width, height) {
  const most = Math.max(2, Math.floor(width / 80));
  return s(
    "g",
    { "aria-hidden": "true" },
    ticks(0, last, most).map((at) => [
      s("line", { class: "tick", x1: x(at), x2: x(at), y1: 0, y2: height - AXIS + 4 }),
      s(
        "text",
        {
          class: "time",
          x: x(at),
          y: height - 4,
          "text-anchor": at === 0 ? "start" : x(last) - x(at) < 20 ? "end" : "middle",
        },
        `${at} s`,
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
  const spanAt = (event) => (event.target.matches(".span") ? event.target : null);
  const select = (span, open = false) =>
    onSelect(span?.getAttribute("aria-label") ?? null, span?.dataset.draft ?? null, open);
  svg.addEventListener("pointerover", (event) => spanAt(event) && hasMoved(event) && select(spanAt(event)));
  svg.addEventListener("focusin", (event) => spanAt(event) && select(spanAt(event)));
  svg.addEventListener("click", (event) => spanAt(event) && select(spanAt(event), true));
  svg.addEventListener("pointerout", (event) => spanAt(event) && hasMoved(event) && select(null));
  svg.addEventListener("focusout", () => select(null));
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && spanAt(event)) select(spanAt(event), true);
    else moveFocus(event, spans);
  });
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

// What bars look like, and the fates: the chain and the ledger use the same marks.
export function showLegend(list) {
  const bars = { writes: "write", judges: "judge", discarded: "wasted", committed: "commit" };
  const forms = Object.entries(bars).map(([name, key]) => h("li", {}, h("span", { class: `key ${key}` }), name));
  const fates = Object.entries(FATES).map(([fate, name]) => h("li", {}, mark(fate), name));
  list.replaceChildren(...forms, ...fates);
}
