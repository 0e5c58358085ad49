// Trajectory list: filters, search, sort order, and downloads of the matching trajectories.

import { html, nothing } from "./vendor/lit-html.js";
import { load } from "./api.js";
import { List } from "./list.js";
import { note, select } from "./parts.js";
import { FILTERS, go } from "./state.js";

const TITLES = { run: "Run", part: "Stage", kind: "From", split: "Split", status: "Status", right: "Answer", calls: "Calls", reward: "Reward", step: "Step", hops: "Hops", known: "Known" };
const NAMES = {
  kind: { evaluation: "evaluations", training: "training", branch: "branches", other: "other files" },
  right: { 1: "right", 0: "wrong", none: "ungraded" },
  known: { 1: "known", 0: "not known" },
};

let list;
let typing;

/** Query for the server: filters, words and order. */
export function query(shown) {
  const keys = [...FILTERS, "task", "q", "sort"];
  return Object.fromEntries(keys.filter((key) => shown[key] !== undefined).map((key) => [key, shown[key]]));
}

export function listView(shown, { runs, live, server }) {
  list ??= new List();
  const revision = live.reading.revision;
  const values = load("api/values", {}, revision);
  const asked = query(shown);
  const total = list.show(asked, revision, runs, shown);
  const address = new URLSearchParams(asked);
  return html`
    <h1>Trajectories</h1>
    <form class="card filters" role="search" @submit=${(event) => event.preventDefault()}>
      <label class="choice search">Search
        <input type="search" name="q" .value=${shown.q ?? ""} placeholder="words of the text" @input=${search}></label>
      ${FILTERS.map((name) => filter(name, values.value?.[name] ?? [], shown))}
      <button type="button" @click=${reset}>Reset</button>
    </form>
    ${note(values.error ?? list.error)}
    <div class="bar">
      <output class="quiet">${total === undefined ? "…" : `${total.toLocaleString("en")} trajectories`}</output>
      ${server ? html`<span class="downloads">
        <a href=${`api/export.jsonl?${address}`} download>JSON lines</a>
        <a href=${`api/export.csv?${address}`} download>CSV</a>
      </span>` : nothing}
    </div>
    ${list.element}`;
}

function filter(name, values, shown) {
  if (values.filter((value) => value !== null).length < 2 && shown[name] === undefined) return nothing;
  const keys = values.map((value) => (value === null ? "none" : String(value)));
  if (shown[name] !== undefined && !keys.includes(shown[name])) keys.push(shown[name]);
  const options = keys.map((key) => [key, NAMES[name]?.[key] ?? key]);
  return select(TITLES[name], shown[name], options, (value) => go({ [name]: value }));
}

function search(event) {
  const words = event.target.value;
  clearTimeout(typing);
  typing = setTimeout(() => go({ q: words || null }, { replace: true }), 150);
}

function reset() {
  go(Object.fromEntries([...FILTERS, "task", "q", "sort"].map((key) => [key, null])));
}

/** The list after it was shown; it provides the trajectories before and after an open one. */
export const openList = () => list;
