// Entry of a report: draws its charts, and shows its trajectories as the live page does.

import { html, render } from "./vendor/lit-html.js";
import { whenLoaded } from "./api.js";
import { plot } from "./plot.js";
import { questionView } from "./question.js";
import { address, follow, go, onChange, state } from "./state.js";
import { listView } from "./trajectories.js";
import { trajectoryView } from "./trajectory.js";

const { charts, parts, run, first } = globalThis.RUN;
document.querySelectorAll("figure[data-chart]").forEach((figure, index) => plot(figure, charts[index]));

const place = document.getElementById("browser");
if (place) {
  const live = { reading: { revision: 1 } };
  let drawing = false;
  let settled;

  const draw = () => {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      const shown = state();
      const view = shown.open ? trajectoryView : shown.question ? questionView : listView;
      render(html`${view(shown, { live, runs: [{ name: run }], server: false })}`, place);
      const now = [shown.open, shown.question].join();
      if (settled !== undefined && now !== settled) place.scrollIntoView();
      settled = now;
    });
  };

  addEventListener("click", follow);
  addEventListener("keydown", ({ key }) => {
    const shown = state();
    if (key === "Escape" && shown.open) go({ open: null });
    else if (key === "Escape" && shown.question) go({ question: null });
  });
  onChange(draw);
  addEventListener("redraw", draw);
  whenLoaded(draw);
  if (!location.hash) history.replaceState(null, "", address({ kind: "evaluation", ...(parts.includes(first) && { part: first }) }, {}));
  draw();
}
