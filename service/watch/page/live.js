// Runs on the service: its methods, and the events of a run as they happen.

const KEY = "stepspec-key";

export class Refused extends Error {
  constructor(status, error, retryAfter) {
    super(error?.message || `The service answered ${status}.`);
    Object.assign(this, { status, kind: error?.type, parameter: error?.param, retryAfter });
  }
}

export function keepKey(key) {
  sessionStorage.setItem(KEY, key);
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

const authorization = () => (hasKey() ? { Authorization: `Bearer ${sessionStorage.getItem(KEY)}` } : {});

export const methods = () => getJson("live/methods");

async function getJson(path) {
  const answer = await fetch(path, { headers: authorization() });
  await raise(answer);
  return answer.json();
}

// Call *onEvent* with every event of the run; return its solution. Aborting *signal* ends the run.
export async function solve(request, signal, onEvent) {
  const headers = { "Content-Type": "application/json", Accept: "text/event-stream", ...authorization() };
  const answer = await fetch("live", { method: "POST", headers, body: JSON.stringify(request), signal });
  await raise(answer);
  for await (const { event, data } of messages(answer.body)) {
    const value = JSON.parse(data);
    if (event === "solution") return value;
    if (event === "error") throw new Refused(answer.status, value.error, null);
    onEvent(value);
  }
  throw new Refused(answer.status, { message: "The stream ended before the run did." }, null);
}

async function raise(answer) {
  if (answer.ok) return;
  const error = await answer.json().then(
    (body) => body.error,
    () => null,
  );
  throw new Refused(
    answer.status,
    typeof error === "string" ? { message: error } : error,
    answer.headers.get("Retry-After"),
  );
}

async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const split = splitter();
  for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) yield* split(chunk.value);
}

// Cut a text/event-stream into messages, wherever the network cut it.
export function splitter() {
  let rest = "";
  return (text) => {
    rest += text;
    const lines = rest.split(/\r\n\r\n|\n\n|\r\r/);
    rest = lines.pop();
    return lines.map(message).filter((one) => one.data);
  };
}

function message(block) {
  const fields = { event: "message", data: [] };
  for (const line of block.split(/\r\n|\n|\r/)) {
    const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (name === "event") fields.event = value;
    if (name === "data") fields.data.push(value);
  }
  return { event: fields.event, data: fields.data.join("\n") };
}

// What went wrong, and what to do about it.
export function advice(error) {
  if (!(error instanceof Refused))
    return ["The service cannot be reached.", "Is “stepspec serve” still running? Then try again."];
  const wait = error.retryAfter ? `in ${error.retryAfter} s` : "in a moment";
  const cures = {
    invalid_request_error: error.parameter
      ? `Change “${error.parameter}”, and run again.`
      : "Change the request, and run again.",
    authentication_error: "Give the service's key, and run again.",
    rate_limit_error: `The service is busy: try again ${wait}.`,
    service_unavailable_error: `The service or a model is not ready: try again ${wait}.`,
    timeout_error: "Give it more time, or a simpler problem.",
  };
  return [
    error.message,
    cures[error.kind] ?? "Run again; if it stays, “stepspec doctor” says what is wrong with the models.",
  ];
}
