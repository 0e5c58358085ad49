// Trajectory view: its question, transcript, tokens and calls.

import { html, nothing } from "./vendor/lit-html.js";
import { load } from "./api.js";
import { place } from "./list.js";
import { accepted, badge, grade, mark, note, number, seconds, waiting } from "./parts.js";
import { address } from "./state.js";
import { strip } from "./strip.js";
import { openList } from "./trajectories.js";
import { transcript } from "./transcript.js";

const redraw = () => dispatchEvent(new Event("redraw"));

/** The trajectory at a place in the address, run/part/kind/step/number; null for another text. */
export function named(open) {
  const parts = open.split("/");
  if (parts.length !== 5 || !/^[0-9]+$/.test(parts[4])) return null;
  const [run, part, kind, step, number] = parts.map(decodeURIComponent);
  return { run, part, kind, ...(step ? { step } : {}), number };
}

/** `branch(asked, live, redraw)` continues a trajectory, where a server can. */
export function trajectoryView(shown, { live, branch }) {
  const asked = named(shown.open);
  const before = openList()?.beside(shown, -1);
  const after = openList()?.beside(shown, 1);
  return html`
    <div class="bar">
      <a class="back" href=${address({ open: null })}>← Back <small>Esc</small></a>
      <span class="pager">
        ${before ? html`<a href=${address({ open: place(before) })}>Previous</a>` : nothing}
        ${after ? html`<a href=${address({ open: place(after) })}>Next</a>` : nothing}
      </span>
    </div>
    ${asked
      ? waiting(load("api/trajectory", asked, live.reading.revision), (one) => trajectory(one, shown, asked, live, branch))
      : html`<h1>Trajectory</h1>${note("This address names no trajectory, because its number is missing: go back, and open one from the list.")}`}`;
}

function trajectory(one, shown, asked, live, branch) {
  return html`
    <article>
      <h1 class="asked">${one.question}</h1>
      <p class="verdict ${grade(one.right)}">${mark(one.right)} ${one.answer ?? "no answer"}
        <small>${one.right ? "" : `accepted: ${accepted(one.accepted) || "nothing"}`}</small></p>
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
        <div>${one.segments.length ? strip(one.segments, one.tokenizer, shown, redraw) : nothing}${calls(one.call_records)}</div>
      </div>
      ${branch ? branch(asked, live, redraw) : nothing}
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
