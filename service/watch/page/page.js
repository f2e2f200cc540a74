// The page: what is on it now, and what happens when somebody does something.

import { announceEvent } from "./announce.js";
import { finishReason, showAnswer, showChain, showProblem } from "./chain.js";
import { count, find, h, seconds } from "./element.js";
import { LONG, wasRejected } from "./folds.js";
import { offerMethods, offerOptions, request } from "./form.js";
import { connectPointer, hasMoved, highlight, rowOf, showBars } from "./highlight.js";
import { connectKeys, keepStop, stopAt } from "./keys.js";
import { advice, hasKey, keepKey, methods, solve } from "./live.js";
import { EMPTY, reduce } from "./reduce.js";
import { spansOf } from "./spans.js";
import { showSpeed } from "./speed.js";
import { showLedger } from "./summary.js";
import { describe, showLegend, showModels, showTimeline } from "./timeline.js";
import { formatTrace, parseTrace } from "./trace.js";

let events = [];
let view = EMPTY;
let running = null; // what ends the run that goes on
let drawing = false;
let spans = []; // of the view that is shown
let opened = new Set(); // the folds of the chain that are open
let zoom = 1;
let drawnWidth = 0;

function begin(all) {
  events = all;
  view = all.reduce(reduce, EMPTY);
  opened = new Set();
  zoom = 1;
  find("only-rejected").checked = false;
  complain(null);
  highlight(null);
  draw();
}

function take(event) {
  events.push(event);
  view = reduce(view, event);
  announceEvent(event);
  if (!drawing) requestAnimationFrame(draw);
  drawing = true;
}

function draw() {
  drawing = false;
  const follow = running && window.innerHeight + window.scrollY >= document.body.scrollHeight - 80;
  const begun = events.length > 0;
  for (const id of ["run", "aside"]) find(id).hidden = !begun;
  find("empty").hidden = begun;
  find("save").disabled = !begun;
  const width = find("timeline-plot").clientWidth;
  spans = spansOf(view); // Everything is measured above and written below, so that the page is laid out once.
  showModels(find("models"), view);
  showSpeed(view);
  showProblem(find("conversation"), view.messages);
  drawChain();
  showAnswer(find("answer"), view);
  find("answering").hidden = !view.answer && !view.finished;
  drawLedger();
  find("so-far").hidden = view.finished !== null;
  if (begun) drawPlot(width);
  status();
  if (follow) window.scrollTo({ top: document.body.scrollHeight });
}

function drawChain() {
  const onlyRejected = find("only-rejected").checked;
  const { folded, open } = showChain(find("steps"), view, { onlyRejected, opened });
  const rejected = view.drafts.filter(wasRejected).length;
  find("rejected-count").textContent = `${count(rejected)} of ${count(view.drafts.length)}`;
  find("none-rejected").hidden = !onlyRejected || rejected > 0;
  find("unfold").hidden = !folded;
  find("unfold").textContent = open ? "Fold all" : "Unfold all";
  keepStop();
}

const drawLedger = () =>
  showLedger(find("ledger-figures"), view, spans, document.querySelector("[name='unit']:checked").value);

function drawPlot(width) {
  drawnWidth = width;
  find("zoom").hidden = view.drafts.length < LONG;
  showTimeline(find("timeline-plot"), view, spans, width, zoom, select);
}

function status() {
  const thinking = running ? `Running, ${seconds(view.at)}` : events.length ? "Unfinished" : "";
  find("status").textContent = view.finished ? ending(view.finished) : thinking;
  document.documentElement.toggleAttribute("data-running", running !== null);
  find("start").hidden = running !== null;
  find("stop").hidden = running === null;
}

const ending = ({ reason, seconds: wall }) =>
  reason === "stop" ? `Finished in ${seconds(wall)}` : finishReason(reason);

function select(text, draft, open) {
  highlight(draft);
  find("details").textContent = text ?? find("details").dataset.hint;
  if (open && draft !== null) reveal(draft);
}

// Go from the time line to a step of the chain, also to one that is folded or filtered out.
function reveal(draft) {
  if (!rowOf(draft)) {
    find("only-rejected").checked = false;
    drawChain();
  }
  const fold = rowOf(draft);
  if (fold.matches(".fold")) toggleFold(fold);
  stopAt(rowOf(draft));
  rowOf(draft).focus();
}

function toggleFold({ dataset }) {
  const first = Number(dataset.first);
  if (!opened.delete(first)) opened.add(first);
  drawChain();
}

function toggleFolds() {
  const folds = [...find("steps").querySelectorAll(".fold")];
  const closed = folds.filter((fold) => !opened.has(Number(fold.dataset.first)));
  opened = new Set(closed.length ? folds.map((fold) => Number(fold.dataset.first)) : []);
  drawChain();
}

// Open a row of the chain, or close it: a fold has steps, and a step has the requests that made it.
function toggleRow(row) {
  if (row.matches(".step")) return toggleRequests(row);
  const { first } = row.dataset;
  toggleFold(row);
  const drawn = find("steps").querySelector(`.fold[data-first="${first}"]`);
  stopAt(drawn);
  drawn.focus();
}

function toggleRequests(row) {
  const shown = row.querySelector(".requests");
  const button = row.querySelector(".requests-button");
  button.setAttribute("aria-expanded", String(shown === null));
  if (shown) return shown.remove();
  const own = spans.flatMap((span) =>
    span.parts.filter((part) => String(part.draft) === row.dataset.draft).map((part) => [span, part]),
  );
  const sorted = own.toSorted(([, one], [, other]) => one.from - other.from);
  const lines = sorted.map(([span, part]) => h("li", {}, describe(span, part, view)));
  row.append(
    h("ul", { class: "requests" }, lines.length ? lines : h("li", {}, "No request is known to belong to this step.")),
  );
}

function complain(lines) {
  find("error").hidden = lines === null;
  if (lines !== null) [find("error-what").textContent, find("error-cure").textContent] = lines;
}

async function start() {
  if (running) return;
  const asked = request();
  if (!asked.problem) {
    find("problem").focus();
    return complain(["There is no problem to solve.", "Write one, and run again."]);
  }
  begin([]);
  running = new AbortController();
  status();
  try {
    await withKey(() => solve(asked, running.signal, take));
  } catch (error) {
    if (error.name !== "AbortError") complain(advice(error));
  } finally {
    running = null;
    draw();
  }
}

async function withKey(call) {
  for (;;) {
    try {
      return await call();
    } catch (error) {
      if (error.status !== 401 || !(await askForKey())) throw error;
    }
  }
}

function askForKey() {
  const dialog = find("key-dialog");
  find("key-wrong").hidden = !hasKey();
  find("key").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "given"), { once: true });
  });
}

async function open(file) {
  try {
    if (running) running.abort();
    begin(parseTrace(await file.text()));
  } catch (error) {
    complain([
      `${file.name} is not a trace: ${error.message}.`,
      "Open a file that “stepspec solve --trace FILE” or this page wrote.",
    ]);
  }
}

function save() {
  const url = URL.createObjectURL(new Blob([formatTrace(events)], { type: "application/jsonl" }));
  Object.assign(document.createElement("a"), { href: url, download: "trace.jsonl" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function connect() {
  find("composer").addEventListener("submit", (event) => (event.preventDefault(), start()));
  find("composer").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) (event.preventDefault(), start());
  });
  find("stop").addEventListener("click", () => running?.abort());
  find("method").addEventListener("change", offerOptions);
  find("open").addEventListener("click", () => find("file").click());
  find("file").addEventListener(
    "change",
    ({ target }) => target.files[0] && open(target.files[0]).then(() => (target.value = "")),
  );
  find("save").addEventListener("click", save);
  find("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    keepKey(find("key").value.trim());
    find("key-dialog").close("given");
  });
  find("key-cancel").addEventListener("click", () => find("key-dialog").close(""));
  showLegend(find("legend"));
  connectPointer();
  connectDrop();
  connectSteps();
  connectKeys((row) => showBars(row.dataset.draft ?? row.dataset.first), toggleRow);
  connectZoom();
  for (const unit of document.querySelectorAll("[name='unit']")) unit.addEventListener("change", drawLedger);
  new ResizeObserver(resized).observe(find("timeline-plot"));
}

function connectDrop() {
  const over = (on) => document.documentElement.toggleAttribute("data-dropping", on);
  document.addEventListener("dragover", (event) => (event.preventDefault(), over(true)));
  document.addEventListener("dragleave", (event) => event.relatedTarget || over(false));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    over(false);
    if (event.dataTransfer.files[0]) open(event.dataTransfer.files[0]);
  });
}

function connectSteps() {
  const steps = find("steps");
  const draft = (event) => event.target.closest(".step")?.dataset.draft ?? null;
  steps.addEventListener("pointerover", (event) => hasMoved(event) && highlight(draft(event)));
  steps.addEventListener("pointerleave", (event) => hasMoved(event) && highlight(null));
  steps.addEventListener("focusin", (event) => highlight(draft(event)));
  steps.addEventListener("focusout", () => highlight(null));
  steps.addEventListener("click", (event) => {
    if (event.target.closest(".fold-button, .requests-button")) toggleRow(event.target.closest(".row"));
  });
  find("only-rejected").addEventListener("change", drawChain);
  find("unfold").addEventListener("click", toggleFolds);
}

function connectZoom() {
  const to = (next) => {
    const plot = find("timeline-plot");
    const middle = (plot.scrollLeft + plot.clientWidth / 2) / plot.scrollWidth;
    zoom = Math.min(32, Math.max(1, next));
    redrawPlot();
    find("zoom-out").disabled = zoom === 1;
    find("zoom-in").disabled = zoom === 32;
    plot.scrollLeft = middle * plot.scrollWidth - plot.clientWidth / 2;
  };
  find("zoom-in").addEventListener("click", () => to(2 * zoom));
  find("zoom-out").addEventListener("click", () => to(zoom / 2));
}

const redrawPlot = () => drawPlot(find("timeline-plot").clientWidth);

const resized = () => events.length && find("timeline-plot").clientWidth !== drawnWidth && redrawPlot();

async function main() {
  connect();
  const trace = find("trace");
  if (trace) return begin(parseTrace(trace.textContent));
  draw();
  try {
    offerMethods(await withKey(methods));
  } catch (error) {
    complain(advice(error));
  }
}

main();
