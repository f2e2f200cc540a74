// The page: what is on it now, and what happens when somebody does something.

import { announceEvent } from "./announce.js";
import { finishReason, showAnswer, showChain, showProblem } from "./chain.js";
import { find, h, seconds } from "./element.js";
import { offerMethods, offerOptions, request } from "./form.js";
import { advice, hasKey, keepKey, methods, solve, trust } from "./live.js";
import { EMPTY, reduce } from "./reduce.js";
import { connectThreshold, resetThreshold, showThreshold } from "./slider.js";
import { showLedger } from "./summary.js";
import { highlight, showModels, showTimeline } from "./timeline.js";
import { formatTrace, parseTrace } from "./trace.js";
import { connectTheme } from "./theme.js";
import { trustSentences } from "./trust.js";

let events = [];
let view = EMPTY;
let running = null; // what ends the run that goes on
let drawing = false;

function begin(all) {
  events = all;
  view = all.reduce(reduce, EMPTY);
  resetThreshold();
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
  find("copy").disabled = !(view.finished?.answer || view.answer?.text);
  showModels(find("models"), view);
  showProblem(find("conversation"), view.messages);
  showChain(find("steps"), view);
  showAnswer(find("answer"), view);
  find("answering").hidden = !view.answer && !view.finished;
  showLedger(find("ledger-figures"), view);
  find("so-far").hidden = view.finished !== null;
  if (begun) showTimeline(find("timeline-plot"), view, select);
  if (begun) showThreshold(view);
  status();
  if (follow) window.scrollTo({ top: document.body.scrollHeight });
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

function select(text, draft) {
  highlight(draft);
  find("details").textContent = text ?? find("details").dataset.hint;
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
  showTrust();
}

async function showTrust() {
  const status = await trust().catch(() => null); // A run shows the cause better.
  if (status === null) return;
  const sentences = trustSentences(status);
  const sentence = ({ name, text, bad }) => h("li", { "data-bad": bad }, h("strong", {}, `${name}:`), ` ${text}`);
  find("trust").replaceChildren(...sentences.map(sentence));
  find("trust").hidden = sentences.length === 0;
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

async function copy() {
  const answer = view.finished?.answer || view.answer?.text || "";
  const done = await navigator.clipboard.writeText(answer).then(
    () => "Copied",
    () => "Not allowed",
  );
  find("copy").textContent = done;
  setTimeout(() => (find("copy").textContent = "Copy answer"), 1500);
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
  find("copy").addEventListener("click", copy);
  find("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    keepKey(find("key").value.trim());
    find("key-dialog").close("given");
  });
  find("key-cancel").addEventListener("click", () => find("key-dialog").close(""));
  connectDrop();
  connectSteps();
  connectThreshold();
  connectTheme();
  new ResizeObserver(
    () => events.length && (showTimeline(find("timeline-plot"), view, select), showThreshold(view)),
  ).observe(find("timeline-plot"));
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
  const draft = (event) => event.target.closest(".step")?.dataset.draft ?? null;
  find("steps").addEventListener("pointerover", (event) => highlight(draft(event)));
  find("steps").addEventListener("pointerleave", () => highlight(null));
}

async function main() {
  connect();
  const trace = find("trace");
  if (trace) return begin(parseTrace(trace.textContent));
  draw();
  try {
    offerMethods(await withKey(methods));
    await showTrust();
  } catch (error) {
    complain(advice(error));
  }
}

main();
