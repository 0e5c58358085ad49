"""What RL-1 gains from simulators of different fidelity.

    fieldcraft run autocoa-mini
    python bench/fidelity.py runs/autocoa-mini

From the run's SFT-2 it trains SFT-3 to several lengths, measures how faithfully each result
simulates the search, and then trains RL-1 from each. All of it is one run of its own below --out,
which goes on where it was stopped; gains are of greedy exact match with the real search on the
run's held-out questions. It writes fidelity.json and fidelity.html.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.stages import Sft
from fieldcraft.evals.charts import Chart, gain_against_fidelity
from fieldcraft.recipes.loading import load_recipe, parse_recipe
from fieldcraft.records.events import Events, write_metrics
from fieldcraft.records.files import write_json
from fieldcraft.runs.agent import find_agent
from fieldcraft.runs.folder import find_run
from fieldcraft.runs.run import run_recipe
from fieldcraft.runs.simulating import measure_simulator
from fieldcraft.terminal.progress import TerminalSink

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000", "#777")


def main() -> None:
    arguments = parser().parse_intermixed_args()
    recipe = recipe_with_lengths(arguments)
    events = Events([write_metrics, TerminalSink(Console())])
    report = run_recipe(recipe, arguments.out, events)
    before = find_run(arguments.run).read_report()["evals"]["sft2"]
    evals = {trained(0): before, **report["evals"]}
    rows = [measured(arguments, recipe, evals, steps) for steps in arguments.steps]
    told = [r for r in rows if r["holds"] is not None]  # the others never searched
    chart = gain_against_fidelity([(r["simulator"], r["holds"], r["gain"]) for r in told])
    write_json(arguments.out / "fidelity.json", {"run": str(arguments.run), "rows": rows})
    (arguments.out / "fidelity.html").write_text(page(chart), "utf-8")
    Console().print(table(rows))
    print(f"{arguments.out / 'fidelity.json'}\n{arguments.out / 'fidelity.html'}")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    found.add_argument("run", type=Path, help="a finished run of the recipe autocoa-mini")
    found.add_argument("overrides", nargs="*", help="settings to change, as in stages.rl1.steps=80")
    found.add_argument("--steps", type=numbers, default="0,100,200,450", help="of SFT-3")
    found.add_argument("--questions", type=int, default=400, help="that fidelity is measured on")
    found.add_argument("--out", type=Path, default=Path("runs/fidelity"))
    return found


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def recipe_with_lengths(arguments: argparse.Namespace) -> Recipe:
    """The run's recipe, which now starts from its SFT-2 and has an SFT-3 and an RL-1 a length."""
    base = load_recipe(str(arguments.run / "recipe.json"), arguments.overrides)
    sft3, rl1 = base.stages.get("sft3"), base.stages.get("rl1")
    if not (isinstance(sft3, Sft) and isinstance(rl1, Rl)):
        raise SystemExit(f"{arguments.run} has no stages sft3 and rl1: run autocoa-mini.")
    stages: dict[str, Any] = {}
    for steps in arguments.steps:
        start = trained(steps) if steps else "start"
        if steps:
            length = {"start": "start", "steps": steps, "epochs": None}
            stages[start] = sft3.model_dump() | length
        stages[f"rl1-{steps}"] = rl1.model_dump() | {"start": start}
    data = dump_recipe(base) | {"stages": stages, "rows": {}, "seeds": []}
    data["model"] = str(arguments.run.resolve() / "sft2" / "model")
    data["evaluation"]["workflows"] = []
    return parse_recipe(data)


def trained(steps: int) -> str:
    """The name of an SFT-3."""
    return f"sft3-{steps}"


def measured(
    arguments: argparse.Namespace, recipe: Recipe, evals: dict[str, Any], steps: int
) -> dict[str, Any]:
    """Fidelity of one simulator, and exact match before and after RL-1 from there."""
    name = trained(steps)
    agent = find_agent(arguments.out / name if steps else arguments.run / "sft2")
    assert agent.inputs is not None
    tasks = agent.inputs.train_tasks()[: arguments.questions]
    found = asyncio.run(measure_simulator(agent, tasks, name, TerminalSink(Console())))
    before, after = evals[name]["em"], evals[f"rl1-{steps}"]["em"]
    fidelity = found["fidelity"]
    return {
        "simulator": name,
        "steps": steps,
        "calls": fidelity["n"],
        **{rate: fidelity[rate] for rate in ("holds", "contradicts", "well_formed")},
        "em_simulated": found["em_simulated"],
        "em_before": before,
        "em_after": after,
        "gain": after - before,
    }


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(box=box.SIMPLE)
    for head in rows[0]:
        shown.add_column(head.replace("_", " "))
    for row in rows:
        shown.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
    return shown


def page(chart: Chart) -> str:
    """The chart as a page of its own; in a report its colours are the report's."""
    colours = {"ink": "#222", "muted": "#555", "line": "#ccc"}
    colours |= {f"stage{slot}": colour for slot, colour in enumerate(COLOURS)}
    style = "".join(f"--{name}:{colour};" for name, colour in colours.items())
    return (
        f"<!doctype html><meta charset=utf-8><title>{chart.title}</title>"
        f"<style>:root{{{style}}}body{{font-family:sans-serif;max-width:50em;margin:2em auto}}"
        f"</style><h1>{chart.title}</h1><p>{chart.note}</p>{chart.svg}\n"
    )


if __name__ == "__main__":
    main()
