// Timeline view of a stage: when sampler, trainer and tools were active, and which of them waited.

import { html, nothing } from "./vendor/lit-html.js";
import { load } from "./api.js";
import { Lanes, PHASES } from "./lanes.js";
import { number, percent, seconds, select, waiting } from "./parts.js";
import { go } from "./state.js";

const WINDOWS = ["1", "3", "10", "30", "100", "all"];
const kept = new Map();

export function timelineView(shown, { runs, live }) {
  const stages = runs.flatMap((run) => run.stages
    .filter(({ name }) => live.files[`${run.path}/${name}/timeline.jsonl`])
    .map(({ name }) => ({ key: `${run.name}/${name}`, run, name })));
  if (!stages.length) return html`<h1>Timeline</h1>
    <p class="quiet">No stage has a timeline. Stages of reinforcement learning write one, in <code>STAGE/timeline.jsonl</code>, but not in earlier versions.</p>`;
  const chosen = stages.find(({ key }) => key === shown.of) ?? stages.findLast(({ name }) => name === shown.stage) ?? stages.at(-1);
  const size = live.files[`${chosen.run.path}/${chosen.name}/timeline.jsonl`];
  const found = load("api/timeline", { run: chosen.run.name, stage: chosen.name }, size);
  return html`
    <h1>Timeline</h1>
    ${waiting(found, ({ steps }) => timeline(steps, shown, stages, chosen))}`;
}

function timeline(found, shown, stages, chosen) {
  if (!found.length) return html`<p class="quiet">No step is complete yet.</p>`;
  const steps = placed(found);
  const many = shown.steps === "all" ? steps.length : Number(shown.steps ?? 3);
  const last = Math.max(0, steps.length - many);
  const first = Math.min(last, Number(shown.first ?? 0));
  const visible = steps.slice(first, first + many);
  if (!kept.has(chosen.key)) kept.set(chosen.key, new Lanes());
  const lanes = kept.get(chosen.key);
  lanes.show(visible);
  return html`
    <form class="card filters" @submit=${(event) => event.preventDefault()}>
      ${select("Stage", chosen.key, stages.map(({ key }) => [key, key]), (value) => go({ of: value, first: null }), null)}
      ${select("Steps at once", shown.steps ?? "3", WINDOWS.map((value) => [value, value]), (value) => go({ steps: value }), null)}
      <label class="choice wide-range">From step
        <input type="range" min="0" max=${last} .value=${String(first)} @input=${(event) => go({ first: event.target.value }, { replace: true })}>
        <output>${visible[0].step}</output></label>
    </form>
    ${summary("In the whole stage", steps)}
    ${visible.length < steps.length ? summary("In these steps", visible) : nothing}
    <p class="keys">
      <span class="key-sampler"><i></i>rollouts that generate</span> <span class="key-tools"><i></i>rollouts that wait for tools</span>
      ${Object.entries(PHASES).map(([phase, [title]]) => html`<span class=${`key-${phase}`}><i></i>${phase === "between" ? "" : "trainer "}${title}</span> `)}
    </p>
    ${lanes.element}
    <div class="scroll card" tabindex="0" role="region" aria-label="Steps">
      <table class="figures">
        <thead><tr>${["Step", "took", "trained", "waited for rollouts", "published", "between", "sampler idle", "rollouts generating", "rollouts at tools"].map((title) => html`<th scope="col">${title}</th>`)}</tr></thead>
        <tbody>${visible.slice(0, 200).map(row)}</tbody>
      </table>
    </div>`;
}

/** Steps with their start in seconds since the first one, without the time between two starts of a
 * run. */
function placed(steps) {
  let begin = 0;
  return steps.map((step) => {
    const one = { ...step, begin };
    begin += step.seconds;
    return one;
  });
}

function times(step) {
  const found = { train: 0, wait: 0, publish: 0 };
  for (const [phase, begin, end] of step.trainer) found[phase] += end - begin;
  const between = Math.max(0, step.seconds - found.train - found.wait - found.publish);
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const still = step.sampler.filter((value) => value === 0).length / step.sampler.length;
  return { ...found, between, still: still * step.seconds, sampler: mean(step.sampler), tools: mean(step.tools) };
}

function summary(title, steps) {
  const sums = steps.map(times).reduce((sum, one) => Object.fromEntries(Object.keys(one).map((key) => [key, (sum[key] ?? 0) + one[key]])), {});
  const whole = steps.reduce((sum, step) => sum + step.seconds, 0) || 1;
  return html`<p>${title} (${seconds(whole)}), the trainer trained ${percent(sums.train / whole)} of the time and waited
    for rollouts ${percent(sums.wait / whole)}. The sampler was idle ${percent(sums.still / whole)} of the time.</p>`;
}

function row(step) {
  const found = times(step);
  return html`<tr><th scope="row">${step.step}</th><td>${seconds(step.seconds)}</td>
    ${["train", "wait", "publish", "between", "still"].map((key) => html`<td>${seconds(found[key])}</td>`)}
    <td>${number(found.sampler)}</td><td>${number(found.tools)}</td></tr>`;
}
