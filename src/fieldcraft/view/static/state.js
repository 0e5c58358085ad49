// What the page shows is in its address: the view, filters, order and what is open. Whoever gets
// the address sees the same.

export const VIEWS = { runs: "Runs", curves: "Curves", trajectories: "Trajectories", timeline: "Timeline" };

const listeners = [];

export function state() {
  const found = Object.fromEntries(new URLSearchParams(location.search));
  return { ...found, view: found.view in VIEWS ? found.view : "runs" };
}

/** The address of this state with some changes; null leaves a key out. */
export function address(changes, from = state()) {
  const kept = Object.entries({ ...from, ...changes }).filter(([, value]) => value !== null);
  return `?${new URLSearchParams(kept)}`;
}

/** Show another state. A step back leads to the one before, unless it is replaced. */
export function go(changes, { replace = false } = {}) {
  const next = address(changes);
  if (next === location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", next);
  for (const listener of listeners) listener();
}

export function onChange(listener) {
  listeners.push(listener);
  addEventListener("popstate", listener);
}

/** For links within the page: show their state without loading the page anew. */
export function follow(event) {
  const link = event.target.closest?.("a[href^='?']");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (link.getAttribute("href") === location.search) return;
  history.pushState(null, "", link.getAttribute("href"));
  for (const listener of listeners) listener();
}
