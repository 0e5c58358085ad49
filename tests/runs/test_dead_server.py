"""A search server that crashes during an evaluation: calls wait for it, or the evaluation stops and
no false result is stored."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.config.recipe import Recipe
from fieldcraft.engine.threads import ThreadCounts
from fieldcraft.extensions.search.index import SearchIndex, build_index
from fieldcraft.extensions.search.server import create_app
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import Event, EventBus, TrajectoryCompleted
from fieldcraft.runs import context
from fieldcraft.runs import run as runs_run
from fieldcraft.runs.agent import find_agent
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.runs.run import run_recipe
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import Task, Trajectory, UserError
from ports import reserved_port

RECIPE = """
name: tiny
device: cpu
instruction: ""
world: {name: atlas, people: 40, variants: 3}
tiny_model: {layers: 2, width: 32, heads: 2}
budget: {max_calls: 2, max_turn_tokens: 16, max_context_tokens: 200, call_timeout_seconds: 5}
stages:
  base:
    type: sft
    dataset: base
    max_examples: 40
    steps: 2
    batch_size: 4
    optim: {lr: 5.0e-3}
evaluation: {splits: {heldout: 8, train: 2, known: 2}, workflows: [rag], concurrency: 1}
"""
PART = "rag: evaluation"
GONE = r"was stopped, because 1 of its 12 questions had .* 'Search failed: the server "


class Server:
    """A search server that can be stopped and restarted at the same address."""

    def __init__(self, index: SearchIndex, port: int) -> None:
        self.app = create_app(index)
        self.life = ExitStack()
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.life.enter_context(serve_in_thread(self.app, self.port))

    def end(self) -> None:
        self.life.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    world = tmp_path / "world"
    world.mkdir()
    make_data_source(load_recipe(str(tmp_path / "recipe.yaml"), [])).write_files(world)
    with reserved_port() as port:
        server = Server(build_index(world / "corpus.jsonl", tmp_path / "index"), port)
        server.start()
        yield server
        server.end()


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_clocks(v) for k, v in value.items() if "seconds" not in k}
    return value


def figures(out: Path) -> dict[str, Any]:
    """Return the finished evaluations, without their durations."""
    files = (out / "evaluations").glob("*.json")
    return {file.stem: without_clocks(json.loads(file.read_text())["summary"]) for file in files}


@pytest.mark.long
def test_an_evaluation_is_done_anew_or_waits(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "find_fastest_threads", lambda _: ThreadCounts(1, 1))
    monkeypatch.setattr(runs_run, "write_run_report", lambda *_, **__: {})  # to save time
    recipe: Recipe = load_recipe(str(tmp_path / "recipe.yaml"), [f"search.url={server.url}"])
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    trajectories: list[Trajectory] = []

    def restart_in_the_middle(event: Event) -> None:
        if isinstance(event, TrajectoryCompleted) and event.phase == PART:
            trajectories.append(event.trajectory)
            if len(trajectories) == 5:
                server.end()
                threading.Timer(0.2, server.start).start()

    run_recipe(recipe, whole, EventBus([]))
    run_recipe(recipe, tmp_path / "waiting", EventBus([restart_in_the_middle]))
    assert len(trajectories) == 12
    assert figures(tmp_path / "waiting") == figures(whole)
    trajectories.clear()

    def end_in_the_middle(event: Event) -> None:
        if isinstance(event, TrajectoryCompleted) and event.phase == PART:
            trajectories.append(event.trajectory)
            if len(trajectories) == 5:
                server.end()

    with pytest.raises(UserError, match=GONE):
        run_recipe(recipe, cut, EventBus([end_in_the_middle]))
    assert len(trajectories) == 5  # and the sixth is not reported
    done = sorted(path.name for path in (cut / "evaluations").iterdir())
    assert done == ["base.json", "base.jsonl"]
    server.start()
    run_recipe(recipe, cut, EventBus([]))
    assert figures(cut) == figures(whole)
    assert figures(cut)["rag"]["calls_mean"] == 1

    # the same guard for an agent outside its run
    agent = find_agent(cut)
    tasks = [Task(str(i), "Who?", ("Ada",)) for i in range(3)]
    assert agent.evaluate(tasks)["n"] == 3
    server.end()
    with pytest.raises(UserError, match=re.escape(f"No search server answers at {server.url}")):
        agent.evaluate(tasks)
