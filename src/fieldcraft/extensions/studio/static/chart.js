// Chart: uPlot in the colours of the page, with the values at the pointer shown below it.

import { number, percent } from "./parts.js";

const uPlot = globalThis.uPlot;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colourOf = (place) => css(place === null ? "--ink" : `--run${place % 8}`);
const charts = new Set();
const HEIGHT = 220;
const FONT = "12px system-ui, sans-serif";
const DASHES = { dashed: [5, 4], dotted: [2, 3] };

export class Chart {
  /** Charts with the same `key` share their pointer position. `element` is a figure with a caption;
   * without it, the chart has its own figure, with its title. */
  constructor(title, key, element = undefined) {
    this.title = title;
    this.key = key;
    this.heading = element ? undefined : title;
    this.element = element ?? document.createElement("figure");
    this.element.classList.add("card", "chart");
    this.element.tabIndex = 0;
    this.element.setAttribute("role", "group");
    this.element.setAttribute("aria-label", `Chart of ${title}. Left and right arrows move along it.`);
    this.element.addEventListener("keydown", (event) => this.move(event));
    new ResizeObserver(() => this.fit()).observe(this.element);
    charts.add(this);
  }

  /** Draw `series` over `x`: {label, place, y} and optionally faint, points, line, mark, whiskers, sparse
   * and texts. `options` are {axis: name of the x axis, top, log, percent, range: of x, spans, named,
   * names: of x values, optimum: [axis, value], path}. */
  show(x, series, options = {}) {
    const shape = JSON.stringify([series.map(({ y, ...rest }) => rest), options]);
    const data = [x, ...series.map(({ y }) => y)];
    if (shape === this.shape) {
      if (!same(data, this.plot.data)) this.plot.setData(data);
      return;
    }
    this.shape = shape;
    this.make(data, series, options);
  }

  make(data, series, options) {
    const pointed = this.plot?.data[0][this.plot.cursor.idx]; // a redrawn chart keeps its cursor
    this.plot?.destroy();
    this.again = () => this.make(this.plot.data, series, options);
    const { axis = "step", top, log, percent: shares, range: across, spans = [], named = [] } = options;
    const line = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1, size: 5 } };
    const wordy = named.some(([, name]) => name.length * named.length > 40);
    const counted = spans.some(({ has_steps }) => has_steps !== undefined);
    const across_ = { ...line, font: FONT, label: axis, labelFont: FONT, labelSize: 18, size: wordy ? 70 : 34, rotate: wordy ? -40 : 0 };
    if (named.length) Object.assign(across_, { splits: named.map(([at]) => at), values: named.map(([, name]) => shorten(name)) });
    else if (counted) Object.assign(across_, spanTicks(spans));
    this.plot = new uPlot(
      {
        title: this.heading,
        width: this.width(),
        height: HEIGHT + (wordy ? 36 : 0),
        padding: [spans.length ? 22 : null, null, null, null],
        cursor: { sync: { key: this.key }, focus: { prox: 24 }, drag: { x: true, y: false } },
        focus: { alpha: 0.5 },
        scales: {
          x: { time: false, ...(across && { range: () => across }) },
          y: log ? { distr: 3 } : { range: top === undefined ? range : [0, top] },
        },
        axes: [
          across_,
          { ...line, font: FONT, size: 56, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : shares ? `${Math.round(100 * tick)} %` : number(tick, 4))) },
        ],
        series: [
          { label: axis, value: (_, value) => (value === null ? "–" : placeName(value, options)) },
          ...series.map((one) => this.line(one, series, (0.6 * (this.width() - 80)) / data[0].length)),
        ],
        hooks: { draw: [(plot) => this.drawSpans(plot, spans), (plot) => drawExtras(plot, series, options)] },
      },
      data,
      this.element,
    );
    if (pointed !== undefined) this.point(pointed);
  }

  line({ label, place, faint, points, line, mark }, series, room) {
    const bars = mark === "bar" && { paths: uPlot.paths.bars({ size: [1, Math.min(60, room)] }), fill: colourOf(place) };
    const bare = line === "" && !bars && { paths: () => null };
    return {
      label,
      stroke: colourOf(place) + (faint ? "55" : ""),
      width: faint || line in DASHES ? 1 : 2,
      dash: DASHES[line],
      spanGaps: points || line !== undefined,
      ...(faint && { class: "faint" }),
      points: { show: line === undefined && points ? true : line === undefined ? undefined : false, size: 7, fill: css("--card") },
      value: (plot, value, at, index) => written(value, series[at - 2]?.faint ? plot.data[at - 1][index] : undefined),
      ...bars,
      ...bare,
    };
  }

  /** Dashed lines where stages begin, with their names. */
  drawSpans(plot, spans) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.lineWidth = ratio;
    ctx.setLineDash([4 * ratio, 4 * ratio]);
    ctx.textAlign = "left";
    let free = -Infinity;
    for (const { name, start, has_steps, slot, starts_from } of spans) {
      if (has_steps === false) continue; // a single place, whose name is a tick
      const x = Math.round(plot.valToPos(start, "x", true));
      ctx.strokeStyle = css("--muted");
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const text = starts_from && plot.width > 700 ? `${shorten(name)}, from ${starts_from}` : shorten(name);
      if (x > free) {
        ctx.fillStyle = slot === undefined ? css("--muted") : colourOf(slot);
        ctx.fillText(text, x, bbox.top - 6 * ratio);
        free = x + ctx.measureText(text).width + 8 * ratio;
      }
    }
    ctx.restore();
  }

  move(event) {
    const last = this.plot ? this.plot.data[0].length - 1 : -1;
    const now = this.plot?.cursor.idx;
    const places = { ArrowLeft: (now ?? last + 1) - 1, ArrowRight: (now ?? -1) + 1, Home: 0, End: last };
    if (!(event.key in places) || last < 0) return;
    event.preventDefault();
    this.point(this.plot.data[0][Math.max(0, Math.min(last, places[event.key]))]);
  }

  point(x) {
    const left = this.plot.valToPos(x, "x");
    this.plot.setCursor({ left, top: this.plot.bbox.height / devicePixelRatio / 2 });
  }

  width() {
    return Math.max(240, this.element.clientWidth - 24);
  }

  fit() {
    if (this.plot && this.width() !== this.plot.width) this.plot.setSize({ width: this.width(), height: this.plot.height });
  }
}

const shorten = (name) => (name.length <= 16 ? name : `${name.slice(0, 15)}…`);

/** A smoothed value, followed by the raw one. */
const written = (value, raw) => number(value, 4) + (raw === undefined || raw === null ? "" : ` (${number(raw, 4)})`);

const spanAt = (value, spans) => spans.findLast(({ start }) => start <= value);
const step = (value, { start, scale }) => Number(((value - start) * scale).toFixed(2));

/** The meaning of an x position: a name, a step of its stage, or a number. */
export function meaning(value, { spans = [], named = [], names = [] } = {}) {
  const other = [...named, ...names].find(([at]) => at === value)?.[1];
  if (other !== undefined) return other;
  const span = spanAt(value, spans);
  if (span?.has_steps === undefined) return value;
  return span.has_steps ? step(value, span) : span.name;
}

function placeName(value, options) {
  const found = meaning(value, options);
  if (typeof found !== "number") return found;
  const span = spanAt(value, options.spans ?? []);
  return span?.has_steps ? `${span.name}, step ${number(found)}` : number(found);
}

/** Ticks that count the steps of each stage from 0, and the names of stages without steps. */
function spanTicks(spans) {
  const label = (value) => {
    const span = spanAt(value + 1e-9, spans);
    return span.has_steps ? number(step(value, span)) : shorten(span.name);
  };
  return {
    splits: (plot, axis, low, high) =>
      spans.flatMap(({ start, end, scale, has_steps }) => {
        if (!has_steps) return [(start + end) / 2];
        const room = (plot.width * (end - start)) / (high - low) / 45; // ticks that fit
        const steps = (end - start) * scale;
        const whole = [1, 2, 5, 10].map((size) => size * 10 ** Math.floor(Math.log10(Math.max(1, steps / room))))
          .find((size) => size >= steps / room);
        return Array.from({ length: Math.ceil(steps / whole - 0.4) }, (_, i) => start + (i * whole) / scale);
      }),
    values: (_, ticks) => ticks.map(label),
  };
}

/** Marks, whiskers and texts of the series, the optimum, and the path through their points. */
function drawExtras(plot, series, { optimum, path, percent: shares }) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const x = (value) => plot.valToPos(value, "x", true);
  const y = (value) => plot.valToPos(value, "y", true);
  const stroke = (colour, width, points, dash = []) => {
    ctx.strokeStyle = colour;
    ctx.lineWidth = width * ratio;
    ctx.setLineDash(dash.map((length) => length * ratio));
    ctx.beginPath();
    points.forEach(([left, top], index) => (index ? ctx.lineTo(left, top) : ctx.moveTo(left, top)));
    ctx.stroke();
  };
  ctx.save();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  if (path) stroke(css("--muted"), 0.8, path.map(([at, value]) => [x(at), y(value)]));
  if (optimum?.[0] === "x") stroke(css("--ink"), 1.2, [[x(optimum[1]), bbox.top], [x(optimum[1]), bbox.top + bbox.height]], [4, 3]);
  if (optimum?.[0] === "y") stroke(css("--ink"), 1.2, [[bbox.left, y(optimum[1])], [bbox.left + bbox.width, y(optimum[1])]], [4, 3]);
  series.forEach(({ place, mark, whiskers = [], sparse = [], texts }, index) => {
    if (!mark || mark === "bar" || !plot.series[index + 1].show) return;
    let seen = -1; // position among the points of the series, which share x values with others
    plot.data[index + 1].forEach((value, at) => {
      if (value === null || value === undefined) return;
      seen += 1;
      const [left, top, colour] = [x(plot.data[0][at]), y(value), colourOf(place)];
      const [low, high] = whiskers[seen] ?? [value, value];
      stroke(colour, 1.4, [[left, y(low)], [left, y(high)]]);
      if (mark === "tick") stroke(colour, 2, [[x(plot.data[0][at] - 0.4), top], [x(plot.data[0][at] + 0.4), top]]);
      else {
        ctx.beginPath();
        const size = 3.5 * ratio;
        if (mark === "diamond") [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0], [0, -1.3]].forEach(([right, down], i) => ctx[i ? "lineTo" : "moveTo"](left + size * right, top + size * down));
        else ctx.arc(left, top, size, 0, 2 * Math.PI);
        ctx.fillStyle = mark === "dot" && !sparse[seen] ? colour : css("--card");
        ctx.fill();
        ctx.lineWidth = 1.8 * ratio;
        ctx.stroke();
      }
      if (texts) {
        ctx.fillStyle = css("--ink");
        const inside = y(high) - 14 * ratio > bbox.top;
        ctx.fillText(shares ? percent(value) : number(value), left, inside ? y(high) - 7 * ratio : y(low) + 15 * ratio);
      }
    });
  });
  ctx.restore();
}

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
