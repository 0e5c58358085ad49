// What the server says. An answer is kept, and asked for again when its version has changed; until
// the new one is there, the old one is shown.

const kept = new Map();
const MOST = 200;
let told = () => {};

export function whenLoaded(listener) {
  told = listener;
}

/** The answer to a question, or to a wish if there is a `body`. */
export async function ask(path, parameters = {}, body = undefined) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(`${path}?${new URLSearchParams(parameters)}`, options);
  } catch {
    throw new Error("The server does not answer: start 'fieldcraft studio' again.");
  }
  const text = await answer.text();
  if (!answer.headers.get("content-type")?.includes("json")) throw new Error(text);
  const value = JSON.parse(text);
  if (!answer.ok) throw new Error(value.error ?? answer.statusText);
  return value;
}

/** {value, error} of an answer, both undefined until it is there. */
export function load(path, parameters = {}, version = "") {
  const key = `${path}?${new URLSearchParams(parameters)}`;
  const entry = kept.get(key) ?? {};
  kept.delete(key); // to be the newest
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

/** Call `listener` with what has changed in the runs, at once and then whenever something has. */
export function listen(listener, onLost) {
  const source = new EventSource("events");
  source.onmessage = (event) => listener(JSON.parse(event.data));
  source.onerror = onLost;
}
