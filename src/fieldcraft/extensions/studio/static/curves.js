// Curves view: every metric of a stage with all runs in one chart, and held-out exact match over all
// steps of the runs.

import { html, nothing } from "./vendor/lit-html.js";
import { load } from "./api.js";
import { Chart } from "./chart.js";
import { colour, note, select } from "./parts.js";
import { heldout, joined, metricNames, positions, smooth } from "./series.js";
import { go } from "./state.js";

const kept = new Map(); // charts by title, so that they are not recreated when the page is redrawn
const FEW = 12; // charts before the user selects all

export function curvesView(shown, { runs, live, declared }) {
  const stages = [...new Set(runs.flatMap((run) => run.stages.filter(({ steps }) => steps).map(({ name }) => name)))];
  if (!stages.length) return html`<h1>Curves</h1><p class="quiet">No stage has finished a step yet.</p>`;
  const stage = stages.includes(shown.stage) ? shown.stage : stages.at(-1);
  const hidden = (shown.hidden ?? "").split(" ");
  const visible = runs.map((run, place) => ({ run, place })).filter(({ run }) => !hidden.includes(written(run)));
  const found = visible
    .filter(({ run }) => run.stages.some(({ name }) => name === stage))
    .map((one) => ({ ...one, ...metrics(one.run, stage, live) }));
  const errors = found.filter(({ error }) => error).map(({ error }) => error);
  const drawn = found.filter(({ value }) => value?.columns.step?.length).map((one) => ({ ...one, columns: one.value.columns }));
  const names = metricNames(drawn.map(({ columns }) => columns), declared).filter((name) => name.includes(shown.metric ?? ""));
  const some = shown.all || shown.metric ? names : names.slice(0, FEW);
  return html`
    <h1>Curves</h1>
    <form class="card filters" @submit=${(event) => event.preventDefault()}>
      ${select("Stage", stage, stages.map((name) => [name, name]), (value) => go({ stage: value }), null)}
      <label class="choice">Smoothing
        <input type="range" min="0" max="0.98" step="0.02" .value=${shown.smooth ?? "0.6"}
          @input=${(event) => go({ smooth: event.target.value }, { replace: true })}>
        <output>${shown.smooth ?? "0.6"}</output></label>
      ${select("Over", shown.axis ?? "step", [["step", "steps"], ["time", "hours"]], (value) => go({ axis: value }), null)}
      <label class="choice">Metric
        <input type="search" .value=${shown.metric ?? ""} placeholder="part of a name"
          @input=${(event) => go({ metric: event.target.value || null }, { replace: true })}></label>
      ${runs.length > 1 ? html`<fieldset><legend>Runs</legend>${runs.map((run, place) => tick(run, place, hidden))}</fieldset>` : nothing}
    </form>
    ${errors.map(note)}
    ${overall(shown, visible, live)}
    <div class="charts">${some.map((name) => metricChart(name, drawn, shown, stage))}</div>
    ${some.length < names.length
      ? html`<p><button type="button" @click=${() => go({ all: "1" })}>All ${names.length} metrics</button></p>`
      : nothing}`;
}

const grown = new Map(); // {size, total, columns} of each stage

/** The rows of a stage as columns. When its file has grown, only the new rows are requested; when it
 * has shrunk, for example after a kill, all rows. */
function metrics(run, stage, live) {
  const key = `${run.path}/${stage}/metrics.jsonl`;
  const size = live.files[key];
  const old = grown.get(key);
  const known = old && size >= old.size ? old : { total: 0, columns: {} };
  const found = load("api/metrics", { run: run.name, stage, after: known.total }, size);
  if (found.error || !found.value) return { error: found.error, value: old };
  if (found.value.total <= known.total) return { value: known };
  const value = { size, total: found.value.total, columns: longer(known, found.value.columns) };
  grown.set(key, value);
  return { value };
}

function longer({ total, columns }, added) {
  const more = Object.values(added)[0]?.length ?? 0;
  const none = (count) => Array(count).fill(null);
  const names = [...new Set([...Object.keys(columns), ...Object.keys(added)])];
  return Object.fromEntries(names.map((name) => [name, [...(columns[name] ?? none(total)), ...(added[name] ?? none(more))]]));
}

/** The name of a run in the address, where spaces separate names. */
const written = (run) => encodeURIComponent(run.name);

function tick(run, place, hidden) {
  const others = hidden.filter((name) => name && name !== written(run));
  const change = (event) => go({ hidden: (event.target.checked ? others : [...others, written(run)]).join(" ") || null });
  return html`<label class="tick" .style=${colour(place)}>
    <input type="checkbox" .checked=${!hidden.includes(written(run))} @change=${change}><i class="dot"></i>${run.name}</label>`;
}

function chart(title, key) {
  if (!kept.has(title)) kept.set(title, new Chart(title, key));
  return kept.get(title);
}

function overall(shown, visible, live) {
  const splits = [...new Set(visible.flatMap(({ run }) => Object.values(run.evaluations).flatMap(Object.keys)))];
  const split = splits.includes(shown.split) ? shown.split : splits[0];
  const curves = visible
    .map(({ run, place }) => ({ run, place, ...heldout(run, run.stages.map(({ name }) => ({ name, columns: metrics(run, name, live).value?.columns })), split) }))
    .filter(({ x }) => x.length);
  if (!curves.length) return nothing;
  const [x, ...ys] = joined(curves);
  const drawn = chart(`Exact match on ${split ?? "held-out"} questions, over all steps of the run`, "run");
  drawn.show(x, curves.map(({ run, place }, index) => ({ label: run.name, place, points: true, y: ys[index] })), { spans: curves[0].spans, top: 1 });
  return html`<div class="wide">
    ${splits.length > 1 ? select("Split", split, splits.map((name) => [name, name]), (value) => go({ split: value }), null) : nothing}
    ${drawn.element}</div>`;
}

function metricChart(name, drawn, shown, stage) {
  const strength = Number(shown.smooth ?? "0.6");
  const sparse = ({ columns }) => columns[name].filter((value) => typeof value === "number").length < columns.step.length / 2;
  const lines = drawn.filter(({ columns }) => columns[name]).flatMap((one) => {
    const { columns, place, run } = one;
    const x = positions(columns, shown.axis);
    if (sparse(one) || !strength) return [{ x, y: columns[name], label: run.name, place, points: sparse(one) }];
    return [
      { x, y: columns[name], label: `${run.name}, raw`, place, faint: true },
      { x, y: smooth(columns[name], strength), label: run.name, place },
    ];
  });
  const [x, ...ys] = joined(lines);
  const made = chart(name, "stage");
  made.show(x, lines.map(({ label, place, faint, points }, index) => ({ label, place, faint, points, y: ys[index] })), { axis: shown.axis === "time" ? "hours" : "step" });
  return made.element;
}
