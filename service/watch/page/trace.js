// A trace: lines of JSON, one event each, the first of them Started.

export const THINK_END = "</think>";

export function parseTrace(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  if (!lines.length) throw new Error("the file is empty");
  const events = lines.map(parseLine);
  if (events[0].event !== "Started") throw new Error("it does not begin with the event Started");
  return events;
}

export function parseLine(line, place = 0) {
  let event = null;
  try {
    event = JSON.parse(line);
  } catch {
    // The error is thrown below.
  }
  if (typeof event?.event !== "string" || typeof event.at !== "number") {
    throw new Error(`line ${place + 1} is no event of a run`);
  }
  return event;
}

export function formatTrace(events) {
  return events.map((event) => JSON.stringify(event) + "\n").join("");
}
