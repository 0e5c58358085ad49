// Values of a chart: shown at the pointer, selected with the arrow keys, or saved as a file.
const tip = make("div", { class: "tip", role: "status", hidden: true });
document.body.append(tip);

const chartRows = (series) => [
  ["series", "at", "where", "measure", "value"],
  ...series.flatMap((part) => part.points.map(([, , x, y]) => [part.name, part.x, x, part.y, y])),
];

const fileName = (title) => `${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.csv`;

const describe = ({ series, x, y }) => [
  series.name,
  `${series.x} ${typeof x === "number" ? x.toLocaleString("en") : x}`,
  `${series.y} ${y.toLocaleString("en", { maximumSignificantDigits: 4 })}`,
].filter(Boolean);

const makeReadable = (plot) => {
  const series = JSON.parse(plot.dataset.points);
  const places = series.flatMap((part) =>
    part.points.map(([px, py, x, y]) => ({ px, py, x, y, series: part })));
  if (!places.length) return;
  const svg = plot.querySelector("svg");
  const ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  ring.setAttribute("class", "ring");
  ring.setAttribute("r", "5");
  let current = -1;

  const hide = () => {
    tip.hidden = true;
    ring.remove();
  };
  const show = (index) => {
    current = (index + places.length) % places.length;
    const place = places[current];
    ring.setAttribute("cx", place.px);
    ring.setAttribute("cy", place.py);
    svg.append(ring);
    tip.replaceChildren(...describe(place).map((line) => make("div", {}, line)));
    tip.hidden = false;
    const at = new DOMPoint(place.px, place.py).matrixTransform(svg.getScreenCTM());
    const left = Math.min(at.x + 12, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const above = at.y - tip.offsetHeight - 10;
    tip.style.left = `${Math.max(8, left) + scrollX}px`;
    tip.style.top = `${(above > 8 ? above : at.y + 14) + scrollY}px`;
  };
  const nearest = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const away = (place) => (place.px - at.x) ** 2 + 0.3 * (place.py - at.y) ** 2;
    return places.reduce((best, place, i) => (away(place) < away(places[best]) ? i : best), 0);
  };
  const neighbour = (key) => {
    const edge = (step) => {
      const here = places[current]?.series;
      const there = series[(series.indexOf(here) + step + series.length) % series.length];
      return places.findIndex((place) => place.series === there);
    };
    const moves = {
      ArrowLeft: () => current - 1,
      ArrowRight: () => current + 1,
      ArrowUp: () => edge(-1),
      ArrowDown: () => edge(1),
      Home: () => 0,
      End: () => places.length - 1,
    };
    return moves[key];
  };

  plot.tabIndex = 0;
  plot.setAttribute("role", "group");
  plot.setAttribute("aria-label", `${plot.dataset.title}: use the arrow keys to read the values`);
  plot.addEventListener("pointermove", (event) => show(nearest(event)));
  plot.addEventListener("pointerdown", (event) => show(nearest(event)));
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("focus", () => plot.matches(":focus-visible") && show(Math.max(0, current)));
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const move = neighbour(event.key);
    if (!move) return;
    event.preventDefault();
    show(move());
  });
};

document.querySelectorAll(".plot").forEach(makeReadable);

for (const figure of document.querySelectorAll("figure")) {
  const plot = figure.querySelector(".plot");
  const series = plot ? JSON.parse(plot.dataset.points) : [];
  if (!series.length) continue;
  const { title } = plot.dataset;
  const save = () => saveFile(fileName(title), csvText(chartRows(series)));
  figure.append(make("button", { class: "csv", type: "button", "aria-label": `Values of ${title} as CSV`, onclick: save }, "CSV"));
}
