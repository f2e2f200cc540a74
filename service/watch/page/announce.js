// What a screen reader hears of a run: what was committed, not more often than it can be listened to.

import { find } from "./element.js";

const PAUSE = 2000; // milliseconds

let waiting = [];
let timer = null;

export function announce(text) {
  waiting.push(text);
  timer ??= setTimeout(speak, PAUSE);
}

function speak() {
  timer = null;
  const sentences = waiting.length > 2 ? [`${waiting.length - 1} more steps`, waiting.at(-1)] : waiting;
  find("announcements").textContent = sentences.join(". ");
  waiting = [];
}

export function announceEvent(event) {
  if (event.event === "Committed")
    announce(`Step ${event.index + 1}, ${event.step.author}: ${event.step.text.trim().slice(0, 200)}`);
  if (event.event === "Degraded") announce(`The ${event.role} model failed; the run goes on without it`);
  if (event.event === "FellBack") announce(`The verifier failed; its fallback is ${event.fallback}`);
  if (event.event === "AnswerJudged" && event.accepted !== null)
    announce(`The verifier ${event.accepted ? "accepted" : "rejected"} the answer`);
  if (event.event === "Finished")
    announce(event.answer ? `Answer: ${event.answer}` : "The run is over without an answer");
}
