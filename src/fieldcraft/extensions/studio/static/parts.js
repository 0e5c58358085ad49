// Small template components, and number formats. Texts are inserted as values of templates, so they
// are never interpreted as markup.

import { html, nothing } from "./vendor/lit-html.js";

export const number = (value, digits = 3) =>
  value === null || value === undefined
    ? "–"
    : Number.isInteger(value)
      ? value.toLocaleString("en")
      : Math.abs(value) >= 1000
        ? Math.round(value).toLocaleString("en")
        : Math.abs(value) < 0.001
          ? Number(value.toPrecision(digits)).toExponential() // 1.5e-4, which also fits beside an axis
          : String(Number(value.toPrecision(digits)));

export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);

export const seconds = (value) => {
  if (value === null || value === undefined) return "–";
  if (value < 120) return `${number(value)} s`;
  return value < 7200 ? `${number(value / 60)} min` : `${number(value / 3600)} h`;
};

export const grade = (right) => (right === null || right === undefined ? "ungraded" : right ? "right" : "wrong");

export const mark = (right) =>
  html`<span class="mark ${grade(right)}" title=${grade(right)}>${{ right: "✓", wrong: "✗", ungraded: "–" }[grade(right)]}</span>`;

export const note = (text) => (text ? html`<p class="note" role="status">${text}</p>` : nothing);

export const waiting = (entry, show) =>
  entry.error ? note(entry.error) : entry.value === undefined ? html`<p class="quiet">Loading …</p>` : show(entry.value);

export const badge = (name, value, kind = "") =>
  value === null || value === undefined || value === ""
    ? nothing
    : html`<span class="badge ${kind}"><small>${name}</small> ${value}</span>`;

/** The colour of the run at this position on the page; `--run` is its custom property. */
export const colour = (place) => `--run: var(--run${place % 8})`;

export const select = (label, value, options, onChoice, any = "all") => html`
  <label class="choice">${label}
    <select aria-label=${label} @change=${(event) => onChoice(event.target.value || null)}>
      ${any === null ? nothing : html`<option value="" ?selected=${!value}>${any}</option>`}
      ${options.map(([key, title]) => html`<option value=${key} ?selected=${value === key}>${title}</option>`)}
    </select>
  </label>`;

const MAX_ACCEPTED = 5;

/** Accepted answers as text; a city may have dozens of names. */
export const accepted = (answers) => {
  const hidden = answers.length - MAX_ACCEPTED;
  const listed = answers.slice(0, MAX_ACCEPTED).join(" or ");
  return hidden > 0 ? `${listed} or ${hidden} more` : listed;
};
