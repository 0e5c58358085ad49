// Requests to the server. Responses are cached, and requested again when their version changes;
// until the new response arrives, the old one is shown.

const kept = new Map();
const MOST = 200;
let told = () => {};

export function whenLoaded(listener) {
  told = listener;
}

/** Send a GET request, or a POST request if there is a `body`, and return the parsed response. */
export async function ask(path, parameters = {}, body = undefined) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(`${path}?${new URLSearchParams(parameters)}`, options);
  } catch {
    throw new Error("The server does not respond: start 'fieldcraft studio' again.");
  }
  const text = await answer.text();
  if (!answer.headers.get("content-type")?.includes("json")) throw new Error(text);
  const value = JSON.parse(text);
  if (!answer.ok) throw new Error(value.error ?? answer.statusText);
  return value;
}

/** Return {value, error} of a response, both undefined until it arrives. */
export function load(path, parameters = {}, version = "") {
  const key = `${path}?${new URLSearchParams(parameters)}`;
  const entry = kept.get(key) ?? {};
  kept.delete(key); // moved to the end: the most recently used
  kept.set(key, entry);
  if (kept.size > MOST) kept.delete(kept.keys().next().value);
  if (!entry.loading && entry.version !== version) {
    entry.loading = true;
    entry.version = version;
    ask(path, parameters)
      .then((value) => Object.assign(entry, { value, error: undefined }))
      .catch((error) => Object.assign(entry, { error: error.message }))
      .finally(() => {
        entry.loading = false;
        told();
      });
  }
  return entry;
}

/** Call `listener` with the state of the runs, immediately and after each change. */
export function listen(listener, onLost) {
  const source = new EventSource("events");
  source.onmessage = (event) => listener(JSON.parse(event.data));
  source.onerror = onLost;
}
