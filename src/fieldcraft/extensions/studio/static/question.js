// All rollouts of one question in columns: after each stage, and in each recorded step.

import { html, nothing } from "./vendor/lit-html.js";
import { load } from "./api.js";
import { place } from "./list.js";
import { accepted, badge, colour, mark, note, number, select, waiting } from "./parts.js";
import { address, go } from "./state.js";
import { openList } from "./trajectories.js";
import { transcript } from "./transcript.js";

const redraw = () => dispatchEvent(new Event("redraw"));

export function questionView(shown, { runs, live }) {
  const found = load("api/question", { task: shown.question }, live.reading.revision);
  const before = openList()?.beside(shown, -1);
  const after = openList()?.beside(shown, 1);
  return html`
    <div class="bar">
      <a class="back" href=${address({ question: null, of: null })}>← Back <small>Esc</small></a>
      <span class="pager">
        ${before ? html`<a href=${address({ question: before.task, of: null })}>Previous question</a>` : nothing}
        ${after ? html`<a href=${address({ question: after.task, of: null })}>Next question</a>` : nothing}
      </span>
    </div>
    ${waiting(found, (value) => all(value, shown, runs))}`;
}

function all({ rollouts, left }, shown, runs) {
  const groups = new Map();
  for (const one of rollouts) {
    const name = one.kind === "training" ? `Training: ${one.run}, ${one.part}, step ${one.step}` : one.kind === "evaluation" ? `Evaluations: ${one.run}` : one.run;
    groups.set(name, [...(groups.get(name) ?? []), one]);
  }
  const chosen = groups.has(shown.of) ? [[shown.of, groups.get(shown.of)]] : [...groups];
  return html`
    <h1 class="asked">${rollouts[0]?.question ?? shown.question}</h1>
    <p class="quiet">accepted: ${accepted(rollouts[0]?.accepted ?? [])}; ${number(rollouts.length)} rollouts</p>
    ${left ? note(`${left} further rollouts are omitted; the list shows all of them.`) : nothing}
    <form class="card filters" @submit=${(event) => event.preventDefault()}>
      ${select("Show", shown.of, [...groups.keys()].map((name) => [name, name]), (value) => go({ of: value }))}
      <a href=${address({ view: "trajectories", task: shown.question }, {})}>As a list</a>
    </form>
    ${chosen.map(([name, members]) => html`
      <section>
        <h2>${name}</h2>
        <div class="columns" tabindex="0" role="region" aria-label=${name}>${members.map((one) => column(one, runs))}</div>
      </section>`)}`;
}

function column(one, runs) {
  const run = Math.max(0, runs.findIndex(({ name }) => name === one.run));
  return html`
    <article class="card column" .style=${colour(run)}>
      <h3>${mark(one.right)}<a href=${address({ open: place(one) })}>${one.kind === "training" ? `rollout ${one.number + 1}` : one.part}</a></h3>
      <div class="badges">
        ${badge("reward", number(one.reward))}
        ${one.kind === "training" ? badge("advantage", number(one.advantage), one.advantage > 0 ? "good" : one.advantage < 0 ? "odd" : "") : nothing}
        ${badge("version", one.version)} ${badge("calls", one.calls)} ${badge("tokens", one.tokens)}
        ${one.status === "answered" ? nothing : badge("status", one.status.replace("_", " "), "odd")}
      </div>
      ${transcript(one.transcript.filter(({ kind }) => kind !== "prompt"), redraw)}
    </article>`;
}
