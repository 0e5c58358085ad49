// Number series: conversion of metric rows to chart data.

/** Exponential moving average with bias correction; gaps stay gaps. */
export function smooth(values, strength) {
  if (!strength) return values;
  let sum = 0;
  let weight = 0;
  return values.map((value) => {
    if (typeof value !== "number") return null;
    sum = strength * sum + (1 - strength) * value;
    weight = strength * weight + (1 - strength);
    return sum / weight;
  });
}

/** Steps, or hours since the start of the stage. */
export function positions(columns, axis) {
  if (axis !== "time") return columns.step;
  let sum = 0;
  return (columns.seconds ?? columns.step.map(() => 0)).map((value) => (sum += value ?? 0) / 3600);
}

/** Several series over one axis, in the format of uPlot: [positions, values, values, ...]. */
export function joined(series) {
  const places = [...new Set(series.flatMap(({ x }) => x))].sort((a, b) => a - b);
  const at = new Map(places.map((place, index) => [place, index]));
  const columns = series.map(({ x, y }) => {
    const values = places.map(() => undefined);
    x.forEach((place, index) => (values[at.get(place)] = typeof y[index] === "number" ? y[index] : null));
    return values;
  });
  return [places, ...columns];
}

/** The names of numeric metrics: the declared ones in their order, then the others by name. */
export function metricNames(allColumns, declared) {
  const names = new Set(allColumns.flatMap((columns) =>
    Object.keys(columns).filter((name) => name !== "step" && columns[name].some((v) => typeof v === "number"))));
  const others = [...names].filter((name) => !declared.includes(name)).sort();
  return [...declared.filter((name) => names.has(name)), ...others];
}

/** Exact match on held-out questions over all steps of a run, measured before the first stage, and
 * during and after each one. `stages` has the stages of a run with their columns, in order. */
export function heldout(run, stages, split) {
  const untrained = run.evaluations.base?.[split]?.em; // a stage of this name has no model before it
  const measured = typeof untrained === "number" && stages.every(({ name }) => name !== "base");
  const x = measured ? [0] : [];
  const y = measured ? [untrained] : [];
  const spans = [];
  let before = 0;
  for (const { name, columns } of stages) {
    const steps = columns?.step ?? [];
    steps.forEach((step, index) => {
      const value = columns["eval/em"]?.[index];
      if (typeof value === "number") {
        x.push(before + step + 1);
        y.push(value);
      }
    });
    if (steps.length) spans.push({ name, start: before });
    before += steps.length;
    const found = run.evaluations[name]?.[split]?.em;
    if (typeof found === "number" && steps.length) {
      if (x.at(-1) === before) y[y.length - 1] = found;
      else {
        x.push(before);
        y.push(found);
      }
    }
  }
  return { x, y, spans };
}
