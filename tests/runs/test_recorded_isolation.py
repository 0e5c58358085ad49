"""What isolates the programs of a run, in its log and its report."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from checkpoints import write_tiny_checkpoint
from fieldcraft.config.recipe import Recipe
from fieldcraft.recipes.loading import load_recipe, parse_recipe
from fieldcraft.records.events import EventBus, LogMessage
from fieldcraft.runs.context import open_run_context
from fieldcraft.runs.run import write_run_report


def open_tools(recipe: Recipe, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Open the tools of a run; return its report and the lines of its log."""
    lines: list[str] = []
    events = EventBus()
    events.subscribe(
        lambda event: lines.append(event.text) if isinstance(event, LogMessage) else None
    )

    async def start() -> dict[str, Any]:
        async with open_run_context(recipe, folder / "run", events) as context:
            await context.open_tools()
            return write_run_report(context, stopped="it is a test")

    return asyncio.run(start()), lines


@pytest.mark.long
def test_a_run_says_and_records_where_programs_run(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    tools = f"tools=[{{name: python, backend: {{name: sandboxfusion, url: '{url}'}}}}]"
    report, lines = open_tools(load_recipe("code-mini", [tools]), tmp_path)
    summary = f"on the sandbox server {url}"
    assert f"python: programs run {summary}" in lines
    expected = {"backend": "sandboxfusion", "layers": (), "summary": summary}
    assert report["isolation"] == {"python": expected}


def test_a_run_says_and_records_what_restricts_programs_of_an_environment(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(f'{{"question": "Who is {n}?", "answer": "{n}"}}\n' for n in "abc"))
    recipe = parse_recipe(
        {
            "name": "agents",
            "device": "cpu",
            "model": str(write_tiny_checkpoint(tmp_path / "model", "qwen2")),
            "tasks": str(tasks),
            "environment": {"name": "command", "run": "true", "writable": ["/"]},
            "stages": {},
        }
    )
    report, lines = open_tools(recipe, tmp_path)
    summary = "on this machine, and nothing restricts them"
    assert f"command: programs run {summary}" in lines
    assert report["isolation"]["command"] == {"backend": "local", "layers": (), "summary": summary}
