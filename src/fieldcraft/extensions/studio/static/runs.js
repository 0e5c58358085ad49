// Runs view: the progress of all runs, their evaluations, and the differences of their recipes.

import { html, nothing } from "./vendor/lit-html.js";
import { colour, note, number, percent, seconds, select } from "./parts.js";
import { address, go } from "./state.js";

export function runsView(shown, { runs, differences }) {
  return html`
    <h1>Runs</h1>
    <div class="cards">${runs.map(card)}</div>
    ${evaluations(shown, runs)}
    ${runs.length > 1 ? recipes(runs, differences) : nothing}`;
}

function card(run, place) {
  return html`
    <section class="card run" .style=${colour(place)}>
      <h2><i class="dot"></i>${run.name}</h2>
      <p class="quiet">${run.recipe ? `recipe ${run.recipe}, seed ${run.seed}` : "trajectories"}${run.done ? ", complete" : ""}</p>
      <p class="path"><code>${run.path}</code></p>
      ${run.achieved ? html`<p class="achieved">${run.achieved}</p>` : nothing}
      ${run.notes.map(note)}
      <ol class="stages">
        ${run.stages.map((stage) => html`
          <li class=${stage.done ? "done" : stage.steps ? "running" : "waiting"}>
            <a href=${address({ view: "curves", stage: stage.name }, {})}>${stage.name}</a>
            <small>${stage.type}</small>
            <progress max=${stage.of ?? (stage.steps || 1)} value=${stage.steps}
              aria-label=${`Steps of ${stage.name}`}></progress>
            <small class="steps">${number(stage.steps)}${stage.of && stage.of !== stage.steps ? ` of ${number(stage.of)}` : ""} steps${stage.seconds ? `, ${seconds(stage.seconds)}` : ""}</small>
          </li>`)}
      </ol>
    </section>`;
}

function evaluations(shown, runs) {
  const splits = [...new Set(runs.flatMap((run) => Object.values(run.evaluations).flatMap(Object.keys)))];
  const parts = [...new Set(runs.flatMap((run) => Object.keys(run.evaluations)))];
  if (!parts.length) return nothing;
  const split = splits.includes(shown.split) ? shown.split : splits[0];
  return html`
    <section>
      <div class="bar">
        <h2>Evaluations</h2>
        ${select("Split", split, splits.map((name) => [name, name]), (value) => go({ split: value }), null)}
      </div>
      <div class="scroll card" tabindex="0" role="region" aria-label="Evaluations">
        <table class="figures">
          <thead>
            <tr><th scope="col">Stage</th>${runs.map((run, place) => html`
              <th scope="colgroup" colspan="3" .style=${colour(place)}><i class="dot"></i>${run.name}</th>`)}</tr>
            <tr><td></td>${runs.map(() => html`
              <th scope="col">exact match</th><th scope="col">calls</th><th scope="col">questions</th>`)}</tr>
          </thead>
          <tbody>${parts.map((part) => html`
            <tr><th scope="row"><a href=${address({ view: "trajectories", kind: "evaluation", part, split: split === "all" ? null : split }, {})}>${part}</a></th>
              ${runs.map((run, place) => figures(run.evaluations[part]?.[split], place))}</tr>`)}
          </tbody>
        </table>
      </div>
    </section>`;
}

function figures(found, place) {
  if (!found) return html`<td class="quiet">–</td><td></td><td></td>`;
  const [low, high] = found.em_ci95 ?? [found.em, found.em];
  return html`
    <td class="em" .style=${colour(place)}>
      <span>${percent(found.em)}</span>
      <span class="interval" title=${`95 % interval: ${percent(low)} to ${percent(high)}`}>
        <i .style=${`width: ${100 * found.em}%`}></i><s .style=${`left: ${100 * low}%; width: ${100 * (high - low)}%`}></s>
      </span>
    </td>
    <td>${number(found.calls_mean)}</td><td class="quiet">${number(found.n)}</td>`;
}

function recipes(runs, differences) {
  return html`
    <section>
      <h2>Recipe differences</h2>
      ${differences.length === 0 ? html`<p class="quiet">The recipes are the same.</p>` : html`
        <div class="scroll card" tabindex="0" role="region" aria-label="Recipe differences">
          <table class="differences">
            <thead><tr><th scope="col">Key</th>${runs.map((run, place) => html`
              <th scope="col" .style=${colour(place)}><i class="dot"></i>${run.name}</th>`)}</tr></thead>
            <tbody>${differences.map((row) => html`
              <tr><th scope="row"><code>${row.key}</code></th>
                ${row.values.map((value) => html`<td><code>${written(value)}</code></td>`)}</tr>`)}
            </tbody>
          </table>
        </div>`}
    </section>`;
}

const written = (value) => (value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value));
