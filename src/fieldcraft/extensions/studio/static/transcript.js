// Transcript of a trajectory: blocks of thought, action, observation and answer.

import { html, nothing } from "./vendor/lit-html.js";

const LONG = 6000; // characters of a block that are shown initially
const open = new WeakSet(); // fully expanded blocks

export const transcript = (blocks, redraw) => html`
  <div class="transcript">${blocks.map((block) => html`
    <section class="block k-${block.kind}">
      <h4>${block.kind}${block.label ? html` <small>${block.label}</small>` : nothing}</h4>
      <pre tabindex=${block.text.length > 400 ? "0" : nothing}>${open.has(block) ? block.text : block.text.slice(0, LONG)}</pre>
      ${block.more ? html`<p class="quiet">${block.more.toLocaleString("en")} more characters are in the file of the trajectory.</p>` : nothing}
      ${block.text.length > LONG && !open.has(block)
        ? html`<button type="button" @click=${() => { open.add(block); redraw(); }}>${(block.text.length - LONG).toLocaleString("en")} more characters</button>`
        : nothing}
    </section>`)}
  </div>`;
