// Charts of a report: the values that charts.py describes, drawn by the charts of the live page.

import { Chart, meaning } from "./chart.js";
import { joined, smooth } from "./series.js";

const SMOOTHED_POINTS = 24; // with fewer points, a line is drawn as it is

/** Draw a chart into its figure, and let the reader save its values. */
export function plot(figure, chart) {
  const lines = chart.series.flatMap(split);
  const [x, ...ys] = joined(lines);
  const options = {
    axis: chart.x,
    percent: chart.percent,
    log: chart.log,
    spans: chart.spans,
    named: chart.names,
    names: chart.values,
    ...(chart.top !== null && { top: chart.top }),
    ...(chart.x_range && { range: chart.x_range }),
    ...(chart.optimum && { optimum: chart.optimum }),
    ...(chart.path && { path: chart.path }),
  };
  const drawn = new Chart(chart.title, chart.group || chart.title, figure);
  drawn.show(x, lines.map(({ x: _, y, ...rest }, index) => ({ ...rest, y: ys[index].map((value) => value ?? null) })), options);
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "csv", textContent: "CSV", ariaLabel: `Values of ${chart.title} as CSV` });
  button.addEventListener("click", () => save(`${chart.title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.csv`, table(chart, options)));
  figure.append(button);
}

/** The lines of a series: a smoothed one follows its raw values. */
function split({ label, slot, points, line, marks, whiskers, sparse, texts }) {
  const [x, y] = [points.map(([at]) => at), points.map(([, value]) => value)];
  const one = { x, y, label, place: slot, line, mark: marks, whiskers, sparse, texts };
  if (line === "thin") return [{ ...one, faint: true }];
  if (line !== "smooth" || points.length < SMOOTHED_POINTS) return [line === "smooth" ? { ...one, line: "solid", mark: points.length === 1 ? "dot" : "" } : one];
  const strength = 1 - 2 / (points.length / 12 + 1); // of a moving average over a twelfth of the points
  return [{ ...one, faint: true }, { ...one, y: smooth(y, strength) }];
}

const table = (chart, options) => [
  ["series", "at", "where", "measure", "value"],
  ...chart.series.flatMap(({ label, points }) => points.map(([x, y]) => [label, chart.x, meaning(x, options), chart.y, y])),
].map((row) => `${row.map(cell).join(",")}\r\n`).join("");

// Cells that a spreadsheet would evaluate as a formula are marked as text.
function cell(value) {
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function save(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
