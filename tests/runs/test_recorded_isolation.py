"""What isolates the programs of a run, in its log and its report."""

import asyncio
from pathlib import Path

import pytest

from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import EventBus, LogMessage
from fieldcraft.runs.context import open_run_context
from fieldcraft.runs.run import write_run_report


@pytest.mark.long
def test_a_run_says_and_records_where_programs_run(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    tools = f"tools=[{{name: python, backend: {{name: sandboxfusion, url: '{url}'}}}}]"
    recipe = load_recipe("code-mini", [tools])
    lines: list[str] = []
    events = EventBus()
    events.subscribe(
        lambda event: lines.append(event.text) if isinstance(event, LogMessage) else None
    )

    async def open_tools() -> dict:
        async with open_run_context(recipe, tmp_path / "run", events) as context:
            await context.open_tools()
            return write_run_report(context, stopped="it is a test")

    report = asyncio.run(open_tools())
    summary = f"on the sandbox server {url}"
    assert f"python: programs run {summary}" in lines
    expected = {"backend": "sandboxfusion", "layers": (), "summary": summary}
    assert report["isolation"] == {"python": expected}
