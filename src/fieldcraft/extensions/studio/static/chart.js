// Chart: uPlot in the colours of the page, with the values at the pointer shown below it.

import { number } from "./parts.js";

const uPlot = globalThis.uPlot;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const charts = new Set();

export class Chart {
  /** Charts with the same `key` share their pointer position. */
  constructor(title, key) {
    this.title = title;
    this.key = key;
    this.element = document.createElement("figure");
    this.element.className = "card chart";
    this.element.tabIndex = 0;
    this.element.setAttribute("role", "group");
    this.element.setAttribute("aria-label", `Chart of ${title}. Left and right arrows move along it.`);
    this.element.addEventListener("keydown", (event) => this.move(event));
    new ResizeObserver(() => this.fit()).observe(this.element);
    charts.add(this);
  }

  /** Draw `series`: {label, place, faint, points, y}, over `x`. */
  show(x, series, { axis = "step", ends = [], top } = {}) {
    this.ends = ends;
    const shape = JSON.stringify([series.map(({ y, ...rest }) => rest), axis, top]);
    const data = [x, ...series.map(({ y }) => y)];
    if (shape === this.shape) {
      if (!same(data, this.plot.data)) this.plot.setData(data);
      return;
    }
    this.shape = shape;
    this.make(data, series, axis, top);
  }

  make(data, series, axis, top) {
    const pointed = this.plot?.data[0][this.plot.cursor.idx]; // a redrawn chart keeps its cursor
    this.plot?.destroy();
    this.again = () => this.make(this.plot.data, series, axis, top);
    const line = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1, size: 5 } };
    const font = "12px system-ui, sans-serif";
    const options = {
      title: this.title,
      width: this.width(),
      height: 220,
      cursor: { sync: { key: this.key }, focus: { prox: 24 }, drag: { x: true, y: false } },
      focus: { alpha: 0.5 },
      scales: { x: { time: false }, y: { range: top === undefined ? range : [0, top] } },
      axes: [
        { ...line, font, label: axis === "time" ? "hours" : "step", labelFont: font, labelSize: 18, size: 34 },
        { ...line, font, size: 56, values: (_, ticks) => ticks.map((tick) => number(tick, 4)) },
      ],
      series: [
        { label: axis === "time" ? "hours" : "step", value: (_, value) => number(value) },
        ...series.map(({ label, place, faint, points }) => ({
          label,
          stroke: css(`--run${place % 8}`) + (faint ? "55" : ""),
          width: faint ? 1 : 2,
          spanGaps: points,
          ...(faint && { class: "faint" }),
          points: { show: points || undefined, size: 7, fill: css("--card") },
          value: (plot, value, at, index) => written(value, series[at - 2]?.faint ? plot.data[at - 1][index] : undefined),
        })),
      ],
      hooks: { draw: [(plot) => this.drawEnds(plot)] },
    };
    this.plot = new uPlot(options, data, this.element);
    if (pointed !== undefined) this.point(pointed);
  }

  /** Dashed lines where stages end, with their names. */
  drawEnds(plot) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = css("--muted");
    ctx.fillStyle = css("--muted");
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.setLineDash([4 * ratio, 4 * ratio]);
    ctx.textAlign = "right";
    let free = -Infinity;
    for (const { at, name } of this.ends) {
      const x = Math.round(plot.valToPos(at, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const wide = ctx.measureText(name).width;
      if (x - wide > free) {
        ctx.fillText(name, x - 4 * ratio, bbox.top + bbox.height - 6 * ratio);
        free = x;
      }
    }
    ctx.restore();
  }

  move(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !this.plot) return;
    event.preventDefault();
    const last = this.plot.data[0].length - 1;
    const place = Math.max(0, Math.min(last, (this.plot.cursor.idx ?? (by > 0 ? -1 : last + 1)) + by));
    this.point(this.plot.data[0][place]);
  }

  point(x) {
    const left = this.plot.valToPos(x, "x");
    this.plot.setCursor({ left, top: this.plot.bbox.height / devicePixelRatio / 2 });
  }

  width() {
    return Math.max(240, this.element.clientWidth - 24);
  }

  fit() {
    if (this.plot && this.width() !== this.plot.width) this.plot.setSize({ width: this.width(), height: 220 });
  }
}

/** A smoothed value, followed by the raw one. */
const written = (value, raw) => number(value, 4) + (raw === undefined || raw === null ? "" : ` (${number(raw, 4)})`);

/** Range of the vertical axis: wide enough that its ticks are different numbers. */
function range(_, low, high) {
  if (low === null) return [0, 1];
  if (low === 0 && high === 0) return [0, 1];
  const least = Math.max(Math.abs(low), Math.abs(high)) * 1e-3;
  const middle = (low + high) / 2;
  return high - low < least ? [middle - least, middle + least] : uPlot.rangeNum(low, high, 0.1, true);
}

const same = (one, other) =>
  one.length === other.length && one.every((column, i) => column.length === other[i].length && column.at(-1) === other[i].at(-1) && column[0] === other[i][0]);

// The colours of a canvas do not follow the colour scheme automatically.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.again?.()));
