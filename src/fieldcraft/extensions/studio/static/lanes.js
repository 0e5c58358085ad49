// Three lanes over time: generating rollouts, activity of the trainer, rollouts waiting for tools.

import { number, seconds } from "./parts.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const LEFT = 76;
const TOP = 22;
const LANES = [["sampler", 84], ["trainer", 40], ["tools", 84]];
const GAP = 14;
const HEIGHT = TOP + LANES.reduce((sum, [, height]) => sum + height + GAP, 0) + 20;
export const PHASES = { train: ["trains", "--good"], wait: ["waits for rollouts", "--bad"], publish: ["publishes weights", "--run6"], between: ["checkpoints, evaluations", "--line"] };

export class Lanes {
  constructor() {
    this.element = document.createElement("figure");
    this.element.className = "card lanes";
    this.canvas = this.element.appendChild(document.createElement("canvas"));
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.said = this.element.appendChild(document.createElement("output"));
    this.canvas.addEventListener("pointermove", (event) => this.point(this.timeAt(event.offsetX)));
    this.canvas.addEventListener("keydown", (event) => this.move(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Show steps, whose `begin` is in seconds since the first one of the stage. */
  show(steps) {
    const key = JSON.stringify([steps[0], steps.at(-1)]);
    if (key === this.key) return;
    this.key = key;
    this.steps = steps;
    this.pointed = null;
    this.said.textContent = "Point at a time, or move with the arrow keys, to read its values.";
    this.canvas.setAttribute("aria-label", `Sampler, trainer and tools in the steps ${steps[0]?.step} to ${steps.at(-1)?.step}. The table below has the values.`);
    this.draw();
  }

  get begin() {
    return this.steps[0].begin;
  }

  get length() {
    return Math.max(1e-6, this.steps.at(-1).begin + this.steps.at(-1).seconds - this.begin);
  }

  x(time) {
    return LEFT + ((time - this.begin) / this.length) * (this.width - LEFT - 8);
  }

  timeAt(x) {
    return this.begin + ((x - LEFT) / (this.width - LEFT - 8)) * this.length;
  }

  draw() {
    if (!this.steps?.length) return;
    const ratio = devicePixelRatio;
    this.width = Math.max(240, this.element.clientWidth - 24);
    this.canvas.width = this.width * ratio;
    this.canvas.height = HEIGHT * ratio;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${HEIGHT}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif";
    let top = TOP;
    for (const [name, height] of LANES) {
      this.lane(pen, name, top, height);
      top += height + GAP;
    }
    this.marks(pen, top);
  }

  lane(pen, name, top, height) {
    pen.fillStyle = css("--muted");
    pen.textAlign = "left";
    pen.fillText(name, 2, top + height / 2 + 4);
    if (name === "trainer") {
      for (const step of this.steps) {
        this.box(pen, step.begin, step.begin + step.seconds, top, height, css("--line"));
        for (const [phase, begin, end] of step.trainer) this.box(pen, step.begin + begin, step.begin + end, top, height, css(PHASES[phase][1]));
      }
      return;
    }
    const most = Math.max(1, ...this.steps.flatMap((step) => step[name]));
    pen.textAlign = "right";
    pen.fillText(number(most), LEFT - 6, top + 10);
    pen.fillText("0", LEFT - 6, top + height);
    for (const step of this.steps) {
      const width = step.seconds / step[name].length;
      step[name].forEach((busy, slot) => {
        const tall = (busy / most) * height;
        this.box(pen, step.begin + slot * width, step.begin + (slot + 1) * width, top + height - tall, tall, css(name === "sampler" ? "--run0" : "--run1"));
      });
    }
    this.box(pen, this.begin, this.begin + this.length, top + height, 1, css("--line"));
  }

  box(pen, begin, end, top, height, colour) {
    pen.fillStyle = colour;
    const left = Math.round(this.x(begin)); // whole pixels, so that neighbours leave no seam
    pen.fillRect(left, top, Math.max(0.5, Math.round(this.x(end)) - left), height);
  }

  /** Draw the starts of steps, with their numbers where there is space, and the time axis. */
  marks(pen, bottom) {
    pen.textAlign = "left";
    let free = 0;
    for (const { begin, step } of this.steps) {
      const x = this.x(begin);
      pen.fillStyle = css("--muted");
      pen.globalAlpha = 0.4;
      if (this.x(this.begin + this.length / this.steps.length) - LEFT > 3) pen.fillRect(x, TOP - 6, 1, bottom - TOP);
      pen.globalAlpha = 1;
      const label = `step ${step}`;
      if (x >= free) {
        pen.fillText(label, x + 3, TOP - 9);
        free = x + pen.measureText(label).width + 14;
      }
    }
    const ticks = Math.max(2, Math.floor((this.width - LEFT) / 110));
    for (let tick = 0; tick <= ticks; tick++) {
      const time = this.begin + (tick / ticks) * this.length;
      pen.textAlign = tick === ticks ? "right" : tick ? "center" : "left";
      pen.fillStyle = css("--muted");
      pen.fillText(seconds(time), this.x(time), bottom + 8);
    }
    if (this.pointed !== null) {
      pen.fillStyle = css("--ink");
      pen.fillRect(this.x(this.pointed), TOP, 1, bottom - TOP - GAP);
    }
  }

  point(time) {
    this.pointed = Math.max(this.begin, Math.min(this.begin + this.length, time));
    const step = this.steps.findLast(({ begin }) => begin <= this.pointed);
    const within = this.pointed - step.begin;
    const phase = step.trainer.find(([, begin, end]) => begin <= within && within <= end)?.[0] ?? "between";
    const slot = Math.min(step.sampler.length - 1, Math.floor((within / step.seconds) * step.sampler.length));
    this.said.textContent =
      `${seconds(this.pointed)}, step ${step.step}: ${number(step.sampler[slot])} rollouts generate,` +
      ` ${number(step.tools[slot])} wait for tools, trainer: ${PHASES[phase][0]}.`;
    this.draw();
  }

  move(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.point((this.pointed ?? this.begin) + (by * this.length) / 120);
  }
}
