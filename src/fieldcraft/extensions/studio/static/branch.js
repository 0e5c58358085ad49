// Branch from here: sample continuations of a trajectory from a step, and show the step's value.

import { html, nothing } from "./vendor/lit-html.js";
import { ask, load } from "./api.js";
import { note, number, percent, waiting } from "./parts.js";
import { address } from "./state.js";

const wishes = new Map(); // form state by trajectory, preserved while the page is redrawn

export function branchView(asked, live, redraw) {
  const running = live.branch && live.branch.status === null;
  const version = `${live.reading.revision} ${live.done} ${live.branch?.status}`;
  const found = load("api/branches", asked, version);
  return html`
    <section aria-label="Branch from here">
      <h2>Branch from here</h2>
      ${waiting(found, (known) => known.place === null
        ? html`<p class="quiet">This trajectory cannot be continued.</p>`
        : html`${form(known, asked, running, redraw)}${progress(live.branch, running, redraw)}${worth(known, asked)}`)}
    </section>`;
}

function form(known, asked, running, redraw) {
  const key = new URLSearchParams(asked).toString();
  const wish = wishes.get(key) ?? { at: "0", edit: "", text: "", samples: 32, model: "", trouble: "" };
  wishes.set(key, wish);
  const change = (name) => (event) => { wish[name] = event.target.value; redraw(); };
  const every = wish.at === "";
  return html`
    <p class="quiet">Sample continuations from a step, with the original and with another text.</p>
    <form class="branch" @submit=${(event) => { event.preventDefault(); start(wish, asked, redraw); }}>
      <label class="choice">From
        <select aria-label="From" @change=${change("at")}>
          <option value="" ?selected=${every}>every step: the value of each</option>
          <option value="0" ?selected=${wish.at === "0"}>the question</option>
          ${known.steps.map((text, place) => html`
            <option value=${place + 1} ?selected=${wish.at === String(place + 1)}>step ${place + 1}: ${text}</option>`)}
        </select></label>
      <label class="choice">With
        <select aria-label="With" ?disabled=${every} @change=${change("edit")}>
          <option value="" ?selected=${!wish.edit}>the original</option>
          <option value="observation" ?selected=${wish.edit === "observation"}>another observation</option>
          <option value="thought" ?selected=${wish.edit === "thought"}>another thought</option>
        </select></label>
      ${wish.edit && !every
        ? html`<textarea aria-label=${`The other ${wish.edit}`} rows="3" placeholder=${wish.edit === "thought" ? "Start of the model's turn at the step" : "Observation returned at the step"} .value=${wish.text} @input=${change("text")}></textarea>`
        : nothing}
      <label class="choice">Samples
        <input type="number" min="1" max="4096" aria-label="Samples" .value=${String(wish.samples)} @input=${change("samples")}></label>
      <label class="choice">By
        <select aria-label="By" @change=${change("model")}>
          <option value="" ?selected=${!wish.model}>the model that wrote it</option>
          ${known.models.map((name) => html`<option value=${name} ?selected=${wish.model === name}>${name}</option>`)}
        </select></label>
      ${known.may ? html`<button type="submit" ?disabled=${running}>Sample</button>` : nothing}
      <code>${command(known.place, wish)}</code>
      ${known.may ? nothing : html`<p class="quiet">Type this in a terminal, or start the page with <code>--allow-sampling</code>.</p>`}
      ${note(wish.trouble)}
    </form>`;
}

const quoted = (text) => `'${text.replaceAll("'", `'"'"'`)}'`;

function command(place, { at, edit, text, samples, model }) {
  const run = place.split(" --index ")[0].replace("fieldcraft branch ", "");
  const step = at === "" ? "" : ` --step ${at}`;
  const other = edit && at !== "" ? ` --${edit} ${quoted(text)}` : "";
  return `${place}${step}${other}${model ? ` --model ${run}/${model}` : ""} --samples ${samples}`;
}

async function start(wish, asked, redraw) {
  const { at, edit, text, samples, model } = wish;
  const every = at === "";
  const body = { at: every ? null : Number(at), samples: Number(samples), model };
  if (edit && !every) Object.assign(body, { edit, text });
  wish.trouble = "";
  try {
    await ask("api/branch", asked, body);
  } catch (error) {
    wish.trouble = error.message;
  }
  redraw();
}

function progress(branch, running, redraw) {
  if (!branch?.command) return nothing;
  if (!running) return branch.status ? note(branch.said) : nothing;
  return html`
    <p class="running" role="status"><progress aria-label="Sampling"></progress> ${branch.said}
      <button type="button" @click=${() => ask("api/branch/stop", {}, {}).finally(redraw)}>Stop</button></p>`;
}

function worth(known, asked) {
  if (!known.results.length) return nothing;
  return html`
    <div class="scroll"><table class="worth">
      <thead><tr><th scope="col">From</th><th scope="col">With</th><th scope="col">Right</th><th scope="col">Of</th><th scope="col">95 %</th></tr></thead>
      <tbody>${known.results.map((found) => found.steps ? values(found, asked) : branch(found, asked))}</tbody>
    </table></div>`;
}

const samples = (found, name, text, { run }) =>
  html`<a href=${address({ view: "trajectories", run, part: `${found.folder}/${name}`, kind: "branch" }, {})}>${text}</a>`;

const cells = (rate) => html`
  <td>${percent(rate.share)}</td><td>${rate.n}</td>
  <td>${rate.n ? interval(rate) : "–"}</td>`;

// Styles are set as properties, because the page does not allow inline styles.
const interval = ({ ci95: [low, high], share }) => html`
  <span class="interval" title=${`${percent(low)} to ${percent(high)}`}>
    <i .style=${`width: ${100 * share}%`}></i>
    <s .style=${`left: ${100 * low}%; width: ${100 * (high - low)}%`}></s>
  </span>`;

const after = (step) => (step ? `after step ${step}` : "the question");

function values(found, asked) {
  return found.steps.map((row) => html`<tr>
    <th scope="row">${after(row.step)} <small>${row.step ? row.what : ""}</small></th>
    <td>${samples(found, `after-${row.step}`, "the original", asked)}</td>${cells(row)}</tr>`);
}

function branch(found, asked) {
  const before = found.edit === "thought" ? found.step - 1 : found.step;
  const from = found.edit === "thought" ? `before step ${found.step}` : after(found.step);
  const original = html`<tr><th scope="row">${from}</th>
    <td>${samples(found, `after-${before}`, "the original", asked)}</td>${cells(found.original)}</tr>`;
  if (!found.edit) return original;
  const { gain } = found;
  return html`${original}
    <tr><th scope="row">${from}</th>
      <td>${samples(found, found.name, `another ${found.edit}`, asked)} <small>${found.text}</small></td>${cells(found.edited)}</tr>
    <tr class="gain"><th scope="row"></th><td>difference</td>
      <td colspan="3">${gain.share === null ? "–" : html`${gain.share > 0 ? "+" : ""}${percent(gain.share)} [${percent(gain.ci95[0])}, ${percent(gain.ci95[1])}], p ${gain.p_value < 0.001 ? "< 0.001" : `= ${number(gain.p_value)}`}`}</td></tr>`;
}
