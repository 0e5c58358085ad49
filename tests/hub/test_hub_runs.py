"""Runs with a model and data from a hub: the recorded names, and the files that a resumed run
reads."""

import json
from pathlib import Path
from typing import Any

import pytest

import fieldcraft
from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from cli_parts import sentence, status
from fieldcraft.config.hub_names import (
    HubModel,
    get_snapshot_folder,
    parse_hub_model,
    replace_names_with_paths,
    replace_paths_with_names,
)
from fieldcraft.hub.models import resolve_checkpoint
from fieldcraft.recipes.consent import ConsentRequiredError
from fieldcraft.recipes.exported import AGENT_FILE
from fieldcraft.recipes.loading import load_run_recipe
from fieldcraft.runs.folder import find_run
from fieldcraft.types import UserError
from hub_parts import NAME, go_offline, hub
from hub_server import TOKEN, Hub
from tiny_runs import ENDS, RECIPE, messages

__all__ = ["hub"]
DATA = "org/questions"
GIVEN = (f"model={NAME}", f"tasks=hub:{DATA}", f"demonstrations=hub:{DATA}")

pytestmark = pytest.mark.long


@pytest.fixture
def full_hub(hub: Hub, tmp_path: Path) -> Hub:
    """Provide a hub with a model and demonstrations that are also questions, and a recipe for
    them."""
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = ENDS[0]
    model = write_tiny_checkpoint(tmp_path / "model", "qwen2", tokenizer=tokenizer)
    hub.add_folder(f"models/{NAME}", model)
    questions = [{"question": f"Who is {i}?", "answer": "Ada"} for i in range(3)]
    lines = [
        json.dumps({**question, "messages": messages(question)}) + "\n" for question in questions
    ]
    hub.add(f"datasets/{DATA}", {"train.jsonl": "".join(lines).encode()})
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    return hub


def recipe_json(run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(run, "recipe.json").read_bytes())
    return found


def test_a_resumed_run_reads_the_commits_that_it_began_with(
    full_hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    model, data = full_hub.repositories[f"models/{NAME}"], full_hub.repositories[f"datasets/{DATA}"]
    first, rows = model.refs["main"], data.refs["main"]
    assert status("run", "tiny.yaml", *GIVEN, "--out", "out") == 0
    expected = {"model": f"{NAME}@{first}", "tasks": f"hub:{DATA}@{rows}/default:train"}
    for found in (recipe_json("out"), json.loads(Path("out/report.json").read_bytes())["config"]):
        assert found.items() >= expected.items()
    assert TOKEN not in "".join(p.read_text() for p in Path("out").glob("*.json"))
    assert load_run_recipe(Path("out")).model == get_snapshot_folder(HubModel(NAME, first))

    model.commit({**model.commits[first], "README.md": b"# Another"})
    data.commit({"train.jsonl": b'{"question": "Else?", "answer": "No"}\n'})
    assert (
        resolve_checkpoint(Path(NAME)).name == model.refs["main"] != first
    )  # the cache also has it
    for network in (None, go_offline):
        if network is not None:
            network(monkeypatch)
        Path("out/report.json").unlink()
        capsys.readouterr()
        assert status("run", "tiny.yaml", *GIVEN, "--out", "out") == 0
        assert recipe_json("out").items() >= expected.items()


def test_another_revision_is_another_run(full_hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("run", "tiny.yaml", *GIVEN, "--out", "out") == 0
    model = full_hub.repositories[f"models/{NAME}"]
    model.refs["v2"] = model.commit({**model.commits[model.refs["main"]], "README.md": b"# Two"})
    capsys.readouterr()
    again = [f"model={NAME}@v2", *GIVEN[1:]]
    assert status("run", "tiny.yaml", *again, "--out", "out") == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "with other settings (model=" in message
    assert f"{NAME}@{model.refs['v2']} in this recipe" in message


def test_an_agent_that_is_trained_further_keeps_the_name(full_hub: Hub) -> None:
    agent = fieldcraft.load(NAME, dialect="hermes", tools=[])
    commit = full_hub.repositories[f"models/{NAME}"].refs["main"]
    stage = fieldcraft.Sft(
        dataset="demonstrations", steps=1, batch_size=1, optim=fieldcraft.Optim(lr=1e-3)
    )
    agent.train(
        f"hub:{DATA}",
        stage,
        out="out",
        demonstrations=f"hub:{DATA}",
        ungraded="trust",
        evaluation={"splits": {"heldout": 1}, "workflows": []},
        budget={"max_turn_tokens": 8, "max_context_tokens": 500},
    )
    assert recipe_json("out")["model"] == f"{NAME}@{commit}"


def test_a_run_whose_model_is_not_in_this_cache_says_so(full_hub: Hub, tmp_path: Path) -> None:
    assert status("run", "tiny.yaml", *GIVEN, "--out", "out") == 0
    commit = full_hub.repositories[f"models/{NAME}"].refs["main"]
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"run 'hf download {NAME} --revision {commit}'"):
        find_run(Path("out")).model("start")


def test_what_a_downloaded_agent_asks_for_needs_consent(full_hub: Hub, tmp_path: Path) -> None:
    files = full_hub.repositories[f"models/{NAME}"]
    asks = {"name": "r", "dtype": "float32", "index": None, "dialect": "evil_module:Dialect"}
    asks |= {
        "instruction": None,
        "system_prompt": None,
        "chat_template_kwargs": {},
        "environment": {"name": "tools"},
    }
    asks |= {"tools": [], "search": {}, "budget": {}, "max_num_seqs": 1, "verdict_reward": "auto"}
    files.commit({**files.commits[files.refs["main"]], AGENT_FILE: json.dumps(asks).encode()})
    with pytest.raises(ConsentRequiredError, match="evil_module"):
        fieldcraft.load(NAME)


def test_every_key_that_takes_a_checkpoint_or_a_file_takes_a_name() -> None:
    commit = "a" * 40
    named: dict[str, Any] = {
        "model": f"org/a@{commit}",
        "tasks": f"hub:org/b@{commit}/easy:train",
        "corpus": f"hub:org/c@{commit}/default:train",
        "demonstrations": None,
        "pairs": f"hub:org/d@{commit}/default:train",
        "evaluation": {"tasks": {"dev": f"hub:org/b@{commit}/easy:dev"}},
        "teacher": {"model": f"org/e@{commit}", "members": {"plan": {"model": f"org/f@{commit}"}}},
        "stages": {"d": {"type": "distil", "teacher": {"checkpoint": f"org/g@{commit}"}}},
    }
    placed = replace_names_with_paths(named)
    assert commit in placed["teacher"]["members"]["plan"]["model"]
    assert "@" not in json.dumps(placed)
    assert replace_paths_with_names(placed) == named
    remote = {"teacher": {"url": "http://host/v1", "model": f"org/e@{commit}"}}
    assert replace_names_with_paths(remote) == remote


def test_a_branch_is_no_commit() -> None:
    named = {"model": "org/a@main", "tasks": "hub:org/b:train", "corpus": "a.jsonl"}
    assert replace_names_with_paths(named) == named
    assert parse_hub_model("runs/out/rl") is None
    assert parse_hub_model("model.gguf") is None
    assert parse_hub_model("models/tiny.gguf") is None  # a file that is not there
    assert parse_hub_model("models/model.safetensors") is None


def test_a_hub_name_that_is_wrong_writes_nothing(
    full_hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in ("model=org/other", "tasks=hub:org/other", "demonstrations=hub:org/other:a"):
        key = wrong.partition("=")[0]
        given = [wrong, *(g for g in GIVEN if not g.startswith(f"{key}="))]
        assert status("run", "tiny.yaml", *given, "--out", "out") == 2
        assert "has no accessible repository of that name" in capsys.readouterr().err
        assert not Path("out").exists()
    assert status("eval", "--model", NAME, "--tasks", "hub:org/other") == 2
    assert "org/other" in sentence(capsys)
