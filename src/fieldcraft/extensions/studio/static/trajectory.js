// Trajectory view: its question, transcript, tokens and calls.

import { html, nothing } from "./vendor/lit-html.js";
import { load } from "./api.js";
import { branchView } from "./branch.js";
import { badge, grade, mark, number, seconds, waiting } from "./parts.js";
import { address } from "./state.js";
import { strip } from "./strip.js";
import { openList } from "./trajectories.js";
import { transcript } from "./transcript.js";

const redraw = () => dispatchEvent(new Event("redraw"));

/** The trajectory at a place in the address: run/part/kind/step/number. */
export function named(place) {
  const [run, part, kind, step, number] = place.split("/").map(decodeURIComponent);
  return { run, part, kind, ...(step ? { step } : {}), number };
}

export function trajectoryView(shown, { live }) {
  const asked = named(shown.open);
  const found = load("api/trajectory", asked, live.reading.revision);
  const before = openList()?.beside(shown.open, -1);
  const after = openList()?.beside(shown.open, 1);
  return html`
    <div class="bar">
      <a class="back" href=${address({ open: null })}>← Back <small>Esc</small></a>
      <span class="pager">
        ${before ? html`<a href=${address({ open: before })}>Previous</a>` : nothing}
        ${after ? html`<a href=${address({ open: after })}>Next</a>` : nothing}
      </span>
    </div>
    ${waiting(found, (one) => trajectory(one, shown, asked, live))}`;
}

function trajectory(one, shown, asked, live) {
  return html`
    <article>
      <h1 class="asked">${one.question}</h1>
      <p class="verdict ${grade(one.right)}">${mark(one.right)} ${one.answer ?? "no answer"}
        <small>${one.right ? "" : `accepted: ${one.accepted.join(" or ") || "nothing"}`}</small></p>
      <div class="badges">
        ${badge("run", one.run)} ${badge("stage", one.part)}
        ${badge("step", one.step)} ${badge("index", one.number)}
        ${badge("status", one.status.replace("_", " "), one.status === "answered" ? "" : "odd")}
        ${badge("reward", number(one.reward))}
        ${Object.entries(one.rewards).map(([name, value]) => badge(name, number(value)))}
        ${badge("took", seconds(one.seconds))}
        ${Object.entries(one.meta).filter(([, value]) => ["string", "number", "boolean"].includes(typeof value)).map(([name, value]) => badge(name, String(value)))}
      </div>
      ${one.error ? html`<p class="note">${one.error}</p>` : nothing}
      <p class="actions">
        <a class="button" href=${address({ open: null, question: one.task })}>All rollouts of this question</a>
        ${one.command ? html`<code>${one.command}</code>` : nothing}
      </p>
      <div class="beside">
        <section aria-label="Transcript"><h2>Transcript</h2>${transcript(one.transcript, redraw)}</section>
        <div>${strip(one.segments, one.tokenizer, shown, redraw)}${calls(one.calls)}</div>
      </div>
      ${branchView(asked, live, redraw)}
    </article>`;
}

function calls(made) {
  if (!made.length) return nothing;
  return html`
    <section><h2>Calls</h2>
      <div class="scroll"><table class="calls">
        <thead><tr><th scope="col">Tool</th><th scope="col">Arguments</th><th scope="col">Outcome</th><th scope="col">Took</th></tr></thead>
        <tbody>${made.map((call) => html`<tr>
          <td>${call.tool}${call.simulated ? html` <small>simulated</small>` : nothing}</td><td><code>${JSON.stringify(call.arguments)}</code></td>
          <td class=${call.outcome === "ok" ? "" : "odd"}>${call.outcome}</td><td>${seconds(call.seconds)}</td></tr>`)}</tbody>
      </table></div>
    </section>`;
}
