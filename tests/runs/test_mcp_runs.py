"""A run whose tools belong to an MCP server: check, train, kill, resume, ask."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from checkpoints import write_tiny_checkpoint
from cli_parts import sentence, status
from fieldcraft.engine.threads import ThreadCounts
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.training_rollouts import ROLLOUTS_FOLDER, read_training_rollouts
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.runs import context
from mcp_parts import lives, started, write_server

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model trained to call the server, and its questions."""
    folder = tmp_path_factory.mktemp("taught")
    call = {"action": "note", "arguments": {"text": "a"}}
    # held-out questions contain only letters that are trained
    words = ["".join(letters) for letters in product("xyz", repeat=2)]
    records = [
        {"id": word, "question": f"Where is {word}?", "golden_answers": ["a"], "metadata": {}}
        | {"steps": [call, {"observation": "a"}, {"answer": "a"}]}
        for word in words
    ]
    for name in ("questions", "demonstrations"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    write_tiny_checkpoint(folder / "model", "qwen2")
    sft = {
        "type": "sft",
        "dataset": "demonstrations",
        "steps": 150,
        "batch_size": 4,
        "evaluate": False,
    }
    stages = {"sft": sft | {"optim": {"lr": 1e-2, "schedule": "linear"}}}
    recipe = recipe_of(folder, folder / "model", write_server(folder), stages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "find_fastest_threads", lambda _: ThreadCounts(1, 1))
        assert status("run", write(folder, recipe), "--out", folder / "run") == 0
    return folder


@pytest.fixture
def recipe(taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return a recipe for reinforcement learning of that model, with its own server."""
    monkeypatch.setattr(context, "find_fastest_threads", lambda _: ThreadCounts(1, 1))
    rl = {"type": "rl", "steps": 2, "questions_per_step": 2, "group_size": 2, "entropy_coef": 0.01}
    stages = {"rl": rl | {"checkpoint_every": 1, "optim": {"lr": 1e-5}}}
    return recipe_of(taught, taught / "run" / "sft" / "model", write_server(tmp_path), stages)


def recipe_of(files: Path, model: Path, server: str, stages: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "mcp",
        "device": "cpu",
        "model": str(model),
        "tasks": str(files / "questions.jsonl"),
        "demonstrations": str(files / "demonstrations.jsonl"),
        "dialect": "hermes",
        "tools": [{"mcp": server, "only": ["note"]}],
        "budget": {"max_calls": 2, "max_turn_tokens": 100, "max_context_tokens": 1000},
        "stages": stages,
        "evaluation": {"splits": {"heldout": 2}, "workflows": []},
    }


def write(folder: Path, recipe: dict[str, Any]) -> Path:
    file = folder / "mcp.yaml"
    file.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return file


@pytest.mark.slow
def test_from_a_check_to_an_answer(
    recipe: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run killed after its first step of RL ends like an uninterrupted one."""
    file = write(tmp_path, recipe)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert status("check", file) == 0
    assert "1 of '" in " ".join(capsys.readouterr().out.split())
    assert status("run", file, "--out", whole) == 0
    answered = list(read_trajectories(whole / "evaluations" / "rl.jsonl"))
    calls = [
        c
        for rollout in read_training_rollouts(whole / "rl" / ROLLOUTS_FOLDER)
        for c in rollout.trajectory.calls
    ]
    assert "a" in [call.observation for call in calls]
    assert "All notes come back." in answered[0].segments[0].text  # the server's description

    append = MetricsLog.append

    def die(log: MetricsLog, row: dict[str, Any]) -> None:
        append(log, row)
        if log.path.parent.name == "rl" and row["step"] == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(MetricsLog, "append", die)
    assert status("run", file, "--out", killed) == 130
    monkeypatch.setattr(MetricsLog, "append", append)
    assert status("run", file, "--out", killed) == 0
    one, other = (load_file(run / "rl" / "model" / "model.safetensors") for run in (whole, killed))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    capsys.readouterr()
    assert status("ask", "--model", whole, "Where is xz?") == 0
    assert "calls " in capsys.readouterr().out
    assert not any(map(lives, started(tmp_path)))


BREAKS = '''
import os
from mcp.server.mcpserver import MCPServer

server = MCPServer("breaks")


@server.tool()
def note(text: str) -> str:
    """Write a note.

    All notes come back.
    """
    os._exit(1)


server.run()
'''


@pytest.mark.slow
def test_a_server_that_breaks_stops_the_run_with_a_sentence(
    recipe: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The watch that notices it first may be that of an evaluation or that of the training."""
    recipe["tools"] = [{"mcp": write_server(tmp_path, BREAKS)}]
    assert status("run", write(tmp_path, recipe), "--out", tmp_path / "run") == 2
    message = sentence(capsys)
    assert "the last one: 'The server of note is not there: it ended'" in message


def test_a_check_names_every_problem(
    recipe: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that does not start hides neither the next one nor two tools with the same name."""
    command = write_server(tmp_path)
    twice = {"mcp": command, "only": ["count"]}
    recipe["tools"] = [{"mcp": "no-such-server"}, twice, twice | {"connection": "shared"}]
    assert status("check", write(tmp_path, recipe)) == 2
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert "because there is no command 'no-such-server'" in first
    assert "2 tools have the name 'count': give each a unique name" in second


@pytest.mark.parametrize(
    ("tools", "complaint"),
    [
        ([{"mcp": "x", "names": "find"}], "tools of an MCP server cannot be renamed: use prefix"),
        ([{"name": "mcp"}], "the tool 'mcp' needs the setting 'mcp'"),
    ],
)
def test_settings_that_do_not_fit(
    tools: list[Any],
    complaint: str,
    recipe: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe["tools"] = tools
    assert status("check", write(tmp_path, recipe)) == 2
    assert complaint in sentence(capsys)


def test_a_dialect_with_one_tool_refuses(
    recipe: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe["dialect"] = "autocoa"
    assert status("check", write(tmp_path, recipe)) == 2
    assert "can only call `search`, not `note`; use the dialect hermes" in capsys.readouterr().err
