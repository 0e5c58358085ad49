// The state of the page is in its address: the view, filters, order and open trajectory. The same
// address shows the same state. In a report, which has no server, it is the fragment; there, one
// without "=" is the place of a term.

export const VIEWS = { runs: "Runs", curves: "Curves", trajectories: "Trajectories", timeline: "Timeline" };

/** The columns of trajectories that have a filter. */
export const FILTERS = ["run", "part", "kind", "split", "status", "right", "calls", "reward", "step", "hops", "known"];

const listeners = [];
const MARK = globalThis.RUN ? "#" : "?";
const current = () => (MARK === "?" ? location.search : location.hash.includes("=") ? location.hash : "");

export function state() {
  const found = Object.fromEntries(new URLSearchParams(current().slice(1)));
  return MARK === "#" ? found : { ...found, view: found.view in VIEWS ? found.view : "runs" };
}

/** The address of this state with some changes; null removes a key. */
export function address(changes, from = state()) {
  const kept = Object.entries({ ...from, ...changes }).filter(([, value]) => value !== null);
  return `${MARK}${new URLSearchParams(kept)}`;
}

/** Show another state. Going back leads to the previous one, unless it is replaced. */
export function go(changes, { replace = false } = {}) {
  const next = address(changes);
  if (next === current()) return;
  history[replace ? "replaceState" : "pushState"](null, "", next);
  for (const listener of listeners) listener();
}

export function onChange(listener) {
  listeners.push(listener);
  addEventListener("popstate", listener);
}

/** Handle links within the page: show their state without reloading the page. */
export function follow(event) {
  const link = event.target.closest?.(`a[href^='${MARK}'][href*='=']`);
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (link.getAttribute("href") === current()) return;
  history.pushState(null, "", link.getAttribute("href"));
  for (const listener of listeners) listener();
}
