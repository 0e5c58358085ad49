// Frame of the page: selects the view, and redraws it after changes.

import { html, nothing, render } from "./vendor/lit-html.js";
import { listen, load, whenLoaded } from "./api.js";
import { branchView } from "./branch.js";
import { curvesView } from "./curves.js";
import { note } from "./parts.js";
import { questionView } from "./question.js";
import { runsView } from "./runs.js";
import { VIEWS, address, follow, go, onChange, state } from "./state.js";
import { timelineView } from "./timeline.js";
import { listView } from "./trajectories.js";
import { trajectoryView } from "./trajectory.js";

const views = { runs: runsView, curves: curvesView, trajectories: listView, timeline: timelineView };
let live = { files: {}, done: 0, reading: { done: 0, of: 0, notes: [], revision: 0 } };
let lost = false;
let drawing = false;
let settled = {};

function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    render(page(), document.getElementById("page"));
    settle();
  });
}

/** Scroll to the top of a new view and focus it; going back restores the previous position. */
function settle() {
  const { view, open, question } = state();
  const now = [view, open, question].join();
  if (now === settled.now) return;
  const back = settled.inside && !open && !question && view === "trajectories";
  if (settled.now !== undefined) {
    if (back) document.querySelector(".rows")?.focus({ preventScroll: true });
    else document.getElementById("main").focus({ preventScroll: true });
    if (!back) scrollTo(0, 0);
  }
  settled = { now, inside: Boolean(open || question) };
}

function page() {
  const shown = state();
  const progress = live.reading.of - live.reading.done;
  const runs = load("api/runs", {}, `${live.done} ${Object.values(live.files).join()}`);
  const { runs: all = [], differences = [], metrics: declared = [] } = runs.value ?? {};
  const context = { live, runs: all, differences, declared, server: true, branch: branchView };
  return html`
    <a class="skip" href="#main" @click=${skip}>Skip to the content</a>
    <header class="top">
      <p class="brand">fieldcraft <b>studio</b></p>
      <nav aria-label="Views">
        ${Object.entries(VIEWS).map(
          ([name, title]) => html`<a href=${tab(name, shown)} aria-current=${name === shown.view ? "page" : nothing}>${title}</a>`,
        )}
      </nav>
      <p class="status" role="status">${lost
        ? html`<span class="lost">The server does not respond.</span>`
        : progress > 0
          ? html`Reading: ${Math.floor((100 * live.reading.done) / live.reading.of)} %
              <progress max=${live.reading.of} value=${live.reading.done} aria-label="Reading"></progress>`
          : nothing}</p>
    </header>
    <main id="main" tabindex="-1">
      ${runs.error ? note(runs.error) : nothing}
      ${live.reading.notes.map(note)}
      ${content(shown, context)}
    </main>`;
}

function content(shown, context) {
  if (shown.open) return trajectoryView(shown, context);
  if (shown.question) return questionView(shown, context);
  return views[shown.view](shown, context);
}

/** Address of a tab, which keeps only the selected runs and stage. */
function tab(name, shown) {
  const { hidden = null, stage = null } = shown;
  return address({ view: name, hidden, stage }, {});
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

addEventListener("click", follow);
addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const shown = state();
  if (shown.open) go({ open: null });
  else if (shown.question) go({ question: null });
});
onChange(draw);
addEventListener("redraw", draw);
onChange(() => document.title = `${VIEWS[state().view]} · fieldcraft studio`);
whenLoaded(draw);
listen(
  (changed) => {
    live = changed;
    lost = false;
    draw();
  },
  () => {
    lost = true;
    draw();
  },
);
draw();
