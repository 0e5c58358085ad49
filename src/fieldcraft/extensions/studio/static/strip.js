// Token strip: each token of a trajectory, coloured by a selected value.

import { html, nothing } from "./vendor/lit-html.js";
import { number } from "./parts.js";
import { go } from "./state.js";

const clip = (value) => Math.max(0, Math.min(1, value));
const share = (value) => `${Math.round(100 * clip(value))}%`;
const heat = (value) => `--heat: ${share(value)}`;
const signed = (value) => (value >= 0 ? `--more: ${share(value)}` : `--less: ${share(-value)}`);

/** Values by which tokens can be coloured: title, values of a segment, and colour of a value. */
const LAYERS = {
  author: { title: "author" },
  mask: { title: "mask", of: (s) => s.trained, legend: "green and underlined: the stage trains it; grey: it does not" },
  logprobs: { title: "log-probability", of: (s) => s.logprobs, style: (v) => heat(-v / 5), legend: "the darker, the less likely; full at -5" },
  entropies: { title: "entropy", of: (s) => s.entropies, style: (v) => heat(v / 2), legend: "the darker, the less certain; full at 2 nats" },
  advantages: { title: "advantage", of: (s) => s.advantages, style: (v) => signed(v / 2), legend: "green: more likely by training; red: less likely; full at ±2" },
  ratios: { title: "ratio", of: (s) => s.ratios, style: (v) => signed(2 * Math.log2(v)), legend: "green: above 1; red: below 1; full at a factor of 1.4" },
  versions: { title: "version", of: (s) => s.versions, style: (v) => `--hue: ${(v * 67) % 360}deg`, legend: "a colour for each version of the weights" },
};
const VALUES = Object.entries(LAYERS).filter(([name]) => name !== "author");

let pointed = null; // {segment, at}

export function strip(segments, named, shown, redraw) {
  const there = Object.entries(LAYERS).filter(([, { of }]) => !of || segments.some((segment) => of(segment)));
  const layer = shown.tokens in LAYERS ? shown.tokens : "author";
  const point = (event) => {
    const token = event.target.closest?.(".token");
    if (!token) return;
    pointed = { segment: segments[token.dataset.segment], at: Number(token.dataset.at) };
    redraw();
  };
  const at = segments.includes(pointed?.segment) ? pointed : null;
  const missing = layer !== "author" && !there.some(([name]) => name === layer);
  return html`
    <section class="strip" aria-label="Tokens">
      <div class="bar">
        <h2>Tokens</h2>
        <div class="layers" role="group" aria-label="Colour by">${there.map(([name, { title }]) => html`
          <button type="button" aria-pressed=${name === layer} @click=${() => go({ tokens: name }, { replace: true })}>${title}</button>`)}
        </div>
      </div>
      ${named ? nothing : html`<p class="legend">The run has no readable tokenizer, so ids are shown.</p>`}
      <p class="legend">${missing ? `These tokens have no ${LAYERS[layer].title}.` : layer === "author" ? authors(segments) : html`${LAYERS[layer].legend}${layer === "mask" ? trained(segments) : ""}`}</p>
      <div class="tokens layer-${layer}" tabindex="0" role="group" aria-label="Tokens. Left and right arrows move from one to the next."
        @pointerover=${point} @click=${point} @keydown=${(event) => walk(event, segments, redraw)}>
        ${segments.map((segment, index) => html`
          ${segment.begins && index ? html`<p class="fold">The chain was folded here.</p>` : nothing}
          <p class="segment a-${segment.author}">${segment.pieces.map((piece, i) => token(piece, i, segment, index, layer, at))}${segment.more ? html`<small> … ${number(segment.more)} more tokens</small>` : nothing}</p>`)}
      </div>
      <dl class="of-token" aria-live="polite">${at ? facts(at) : html`<div><dt>Point at a token, or move with the arrow keys, to read its values.</dt></div>`}</dl>
    </section>`;
}

const trained = (segments) => {
  const mask = segments.flatMap((segment) => segment.trained);
  return `; ${number(mask.filter(Boolean).length)} of ${number(mask.length)} tokens are trained`;
};

const authors = (segments) =>
  [...new Set(segments.map(({ author }) => author))].map((name) => html`<span class="a-${name}"><i class="token">${name}</i></span> `);

function token(piece, at, segment, index, layer, pointed) {
  const value = LAYERS[layer].of?.(segment)?.[at];
  const known = value !== null && value !== undefined;
  const style = (known && LAYERS[layer].style?.(value)) || "";
  const classes = [
    "token",
    layer === "mask" && value ? "trained" : "",
    known && style ? "valued" : "",
    pointed?.segment === segment && pointed.at === at ? "pointed" : "",
  ];
  return html`<span class=${classes.filter(Boolean).join(" ")} data-segment=${index} data-at=${at} .style=${style}>${visible(piece)}</span>`;
}

const visible = (piece) => (piece === "" ? "·" : piece.replaceAll("\n", "↵\n"));

function facts({ segment, at }) {
  const rows = [["token", JSON.stringify(segment.pieces[at])], ["id", segment.ids[at]], ["author", segment.author]];
  for (const [name, { title, of }] of VALUES) {
    const value = of(segment)?.[at];
    if (name === "mask") rows.push(["trained", value ? "yes" : "no"]);
    else if (value !== undefined) rows.push([title, name === "versions" ? value : number(value, 4)]);
  }
  return rows.map(([title, value]) => html`<div><dt>${title}</dt><dd>${value}</dd></div>`);
}

function walk(event, segments, redraw) {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const flat = segments.flatMap((segment) => segment.ids.map((_, at) => ({ segment, at })));
  const now = flat.findIndex((one) => one.segment === pointed?.segment && one.at === pointed.at);
  pointed = flat[Math.max(0, Math.min(flat.length - 1, now < 0 ? 0 : now + by))];
  redraw();
  requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector(".token.pointed")?.scrollIntoView({ block: "nearest" })));
}
