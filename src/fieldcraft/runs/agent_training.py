"""Training of an agent from a program: its run, and the output of its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldcraft.config.components import NOTEBOOK_REPORTER, PAGE_EXTENSION
from fieldcraft.config.names import import_object, is_installed
from fieldcraft.config.recipe import Recipe
from fieldcraft.evaluation.results import RunReport
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.records.events import (
    EarlyStopError,
    Event,
    EventBus,
    EventCallback,
    EventHandler,
    write_metrics,
)
from fieldcraft.runs.arguments import (
    StageArguments,
    make_training_keys,
    open_tasks_file,
    require_event_handler,
    require_path,
)
from fieldcraft.runs.check import require_checked
from fieldcraft.runs.folder import find_model
from fieldcraft.runs.resume import require_run_folder
from fieldcraft.runs.run import execute_recipe
from fieldcraft.terminal.console import CleanConsole
from fieldcraft.terminal.notebook_display import find_notebook
from fieldcraft.terminal.progress import TerminalReporter
from fieldcraft.types import UserError


@dataclass(frozen=True)
class AgentTraining:
    """Run that trains an agent with its `recipe` in a folder. `on_event` is the program's event
    handler."""

    recipe: Recipe
    folder: Path
    on_event: EventCallback

    async def execute(self, reporter: EventHandler) -> Path:
        """Execute the remaining work and return the folder in which the trained agent is: the run
        or, if the program's handler ended it early, the stage that was trained last."""
        bus = EventBus([write_metrics, reporter, self.on_event])
        try:
            await execute_recipe(self.recipe, self.folder, bus)
        except EarlyStopError as stop:
            return self.folder / stop.stage
        return self.folder


def prepare_training(
    agent: Recipe,
    model: Path,
    tasks: Any,
    stages: StageArguments,
    out: Path | str,
    on_event: EventCallback,
    settings: dict[str, Any],
) -> AgentTraining:
    """Return the run that trains the model of an agent with this recipe, checked before anything
    is written. Raises UserError like `Agent.train`."""
    folder = require_path(out, "out")
    require_event_handler(on_event)
    names = {"name": folder.name, "model": str(model)}
    keys = names | make_training_keys(agent, stages, settings)
    require_run_folder(folder)
    with open_tasks_file(tasks, folder) as file:
        recipe = parse_recipe({**keys, "tasks": str(file)}, folder)
        if recipe.seeds:
            raise UserError(
                "seeds trains one agent per seed, but a call returns one agent: give seed, and"
                " call once per seed, each with another out."
            )
        if not (folder / "recipe.json").exists():
            require_checked(recipe)
    return AgentTraining(recipe, folder, on_event)


def read_agent_report(model: Path) -> RunReport:
    """Return the report of the run of a model. Raises UserError if there is none."""
    run, _ = find_model(model)
    if run is None or not run.report_json.exists():
        raise UserError(f"{model} belongs to no run with a report: train the agent first.")
    return RunReport(run.read_report())


def make_reporter() -> EventHandler:
    """Return the handler that shows the progress: in one output of a notebook, else in the
    terminal."""
    notebook = find_notebook()
    if notebook is None or not is_installed(PAGE_EXTENSION):
        return TerminalReporter(CleanConsole())
    reporter: Callable[[Event], None] = import_object(NOTEBOOK_REPORTER)(notebook)
    return reporter
