// Virtual list of any length: only the visible rows are requested and rendered.

import { html, nothing, render } from "./vendor/lit-html.js";
import { Virtualizer, elementScroll, observeElementOffset, observeElementRect } from "./vendor/virtual-core.js";
import { ask } from "./api.js";
import { colour, mark, number } from "./parts.js";
import { address, go, state } from "./state.js";

const PAGE = 100; // rows per request
const HEAD = 38; // pixels of the header, which stays above the rows
const PHONE = matchMedia("(max-width: 700px)");
const COLUMNS = [
  ["right", ""], ["question", "Question"], ["part", "Stage"], ["step", "Step"], ["answer", "Answer"], ["status", "Status"],
  ["calls", "Calls"], ["excess", "Excess"], ["tokens", "Tokens"], ["reward", "Reward"], ["advantage", "Advantage"], ["version", "Version"],
];
const SORTED = COLUMNS.map(([name]) => name).filter((name) => name !== "part");

export const place = (row) =>
  [row.run, row.part, row.kind, row.step ?? "", row.number].map((piece) => encodeURIComponent(piece)).join("/");

export class List {
  constructor() {
    this.element = document.createElement("div");
    this.element.className = "card list";
    this.pages = new Map();
    this.active = 0;
    this.total = undefined;
    this.draw();
    this.scroller = this.element.querySelector(".rows");
    this.virtualizer = new Virtualizer(this.options());
    this.virtualizer._didMount();
    this.virtualizer._willUpdate();
    PHONE.addEventListener("change", () => this.update());
  }

  options() {
    return {
      count: this.total ?? 0,
      getScrollElement: () => this.scroller,
      estimateSize: () => (PHONE.matches ? 62 : 36),
      overscan: 12,
      paddingStart: HEAD,
      scrollPaddingStart: HEAD,
      scrollToFn: elementScroll,
      observeElementRect,
      observeElementOffset,
      onChange: () => this.draw(),
    };
  }

  /** Show the results of a query; return their number, undefined until it is known. */
  show(asked, revision, runs, shown) {
    const key = JSON.stringify(asked);
    if (!this.element.isConnected) requestAnimationFrame(() => (this.scroller.scrollTop = this.left ?? 0));
    this.runs = new Map(runs.map((run, index) => [run.name, index]));
    this.shown = shown;
    if (key !== this.key) {
      this.key = key;
      this.asked = asked;
      this.pages.clear();
      this.total = undefined;
      this.active = 0;
      this.error = "";
      this.scroller.scrollTop = 0;
      this.fetch(0);
    } else if (revision !== this.revision) {
      for (const page of this.pages.values()) page.old = true;
      if (!this.pages.size) this.fetch(0);
    }
    this.revision = revision;
    this.draw();
    return this.total;
  }

  async fetch(page) {
    const entry = this.pages.get(page) ?? {};
    if (entry.loading || (entry.rows && !entry.old)) return;
    Object.assign(entry, { loading: true, old: false });
    this.pages.set(page, entry);
    const key = this.key;
    try {
      const found = await ask("api/rows", { ...this.asked, offset: page * PAGE, limit: PAGE });
      if (key !== this.key) return;
      entry.rows = found.rows;
      this.error = "";
      if (found.total !== this.total) this.resize(found.total);
    } catch (error) {
      if (key === this.key) this.error = error.message;
      this.onError?.();
    } finally {
      entry.loading = false;
    }
    this.draw();
  }

  resize(total) {
    this.total = total;
    this.update();
    dispatchEvent(new Event("redraw"));
  }

  update() {
    this.virtualizer.setOptions(this.options());
    this.virtualizer.measure();
    this.virtualizer._willUpdate();
    this.draw();
  }

  row(index) {
    const page = Math.floor(index / PAGE);
    this.fetch(page);
    return this.pages.get(page)?.rows?.[index % PAGE];
  }

  draw() {
    if (this.scroller?.isConnected) this.left = this.scroller.scrollTop;
    const items = this.virtualizer?.getVirtualItems() ?? [];
    const height = this.virtualizer?.getTotalSize() ?? 0;
    const several = (this.runs?.size ?? 0) > 1;
    render(
      html`<div class="grid" role="grid" aria-label="Trajectories" aria-rowcount=${this.total ?? 0}>
        <div class="rows" role="rowgroup" tabindex="0" aria-activedescendant=${`row-${this.active}`}
          @keydown=${(event) => this.press(event)}>
          <div class="head" role="row">${COLUMNS.map(([name, title]) => this.head(name, title))}</div>
          <div class="space" .style=${`height: ${height}px`}>
            ${this.slots(items).map((item) => (item ? this.line(item, this.row(item.index), several) : nothing))}
          </div>
        </div>
        ${this.total === 0 ? html`<p class="quiet empty">No trajectories match: choose other filters.</p>` : nothing}
      </div>`,
      this.element,
    );
  }

  /** Items in fixed slots, so that scrolling only fills the slots that have become free. */
  slots(items) {
    this.places = Math.max(this.places ?? 0, items.length);
    const slots = Array(this.places).fill(null);
    for (const item of items) slots[item.index % this.places] = item;
    return slots;
  }

  head(name, title) {
    const sort = this.shown?.sort ?? "";
    const sorted = sort.replace("-", "") === name;
    if (!SORTED.includes(name)) return html`<span role="columnheader" class=${`c-${name}`}>${title}</span>`;
    // The first click sorts ascending, the second descending, the third resets the order.
    const next = sort === name ? `-${name}` : sort === `-${name}` ? null : name;
    return html`<span role="columnheader" class=${`c-${name}`} aria-sort=${sorted ? (sort[0] === "-" ? "descending" : "ascending") : "none"}>
      <button type="button" @click=${() => go({ sort: next })} aria-label=${`Sort by ${title || "correctness"}`}>${title || "✓"}${sorted ? (sort[0] === "-" ? " ↓" : " ↑") : ""}</button></span>`;
  }

  line(item, row, several) {
    const style = `transform: translateY(${item.start}px); height: ${item.size}px`;
    const active = item.index === this.active ? "active" : "";
    if (!row) return html`<div class="row ${active}" role="row" id=${`row-${item.index}`} .style=${style}><span class="quiet">…</span></div>`;
    return html`<a class="row ${active}" role="row" tabindex="-1" id=${`row-${item.index}`} aria-rowindex=${item.index + 1}
      href=${address({ open: place(row) })} .style=${style} @click=${() => (this.active = item.index)}>
      <span role="gridcell" class="c-right">${mark(row.right)}</span>
      <span role="gridcell" class="c-question" title=${row.question}>${row.question}</span>
      <span role="gridcell" class="c-part" title=${row.run} .style=${colour(this.runs.get(row.run) ?? 0)}>${several ? html`<i class="dot"></i>` : nothing}${row.part}</span>
      <span role="gridcell" class="c-step">${row.kind === "training" ? number(row.step) : ""}</span>
      <span role="gridcell" class="c-answer" title=${row.answer ?? ""}>${row.answer ?? "–"}</span>
      <span role="gridcell" class="c-status ${row.status}">${row.status.replace("_", " ")}</span>
      <span role="gridcell" class="c-calls">${row.calls}</span>
      <span role="gridcell" class="c-excess" title="calls above the least number that suffices">${row.excess ?? ""}</span>
      <span role="gridcell" class="c-tokens">${number(row.tokens)}</span>
      <span role="gridcell" class="c-reward">${number(row.reward)}</span>
      <span role="gridcell" class="c-advantage">${row.kind === "training" ? number(row.advantage) : ""}</span>
      <span role="gridcell" class="c-version">${row.version ?? ""}</span>
    </a>`;
  }

  press(event) {
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / (PHONE.matches ? 62 : 36)) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) {
      event.preventDefault();
      this.active = Math.max(0, Math.min((this.total ?? 1) - 1, this.active + steps[event.key]));
      this.virtualizer.scrollToIndex(this.active);
      this.draw();
    } else if (event.key === "Enter" && event.target === this.scroller) {
      const row = this.row(this.active);
      if (row) go({ open: place(row) });
    }
  }

  /** The row before or after an open one, or of the question before or after an open one, null if
   * missing or not loaded. */
  beside({ open, question }, by) {
    const isOpen = (row) => (open ? place(row) === open : row.task === question);
    for (const [page, { rows }] of this.pages) {
      const at = rows?.findIndex(isOpen) ?? -1;
      if (at < 0) continue;
      for (let index = page * PAGE + at + by; index >= 0 && index < (this.total ?? 0); index += by) {
        const row = this.row(index);
        if (!row || !isOpen(row)) return row ?? null;
      }
    }
    return null;
  }
}
