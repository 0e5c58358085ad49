// The timeline of a stage: what sampler, trainer and tools did when, and so who waited for whom.

import { html } from "./vendor/lit-html.js";

export function timelineView() {
  return html`<h1>Timeline</h1>`;
}
