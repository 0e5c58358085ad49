"""A user-defined world, from its name in a recipe to the report."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from second_world import CodeBook

from fieldcraft.cli.main import main
from fieldcraft.config.recipe import get_split_titles
from fieldcraft.engine.threads import ThreadCounts
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs import context
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.types import UserError

WORLD = {"name": "second_world:CodeBook", "codes": 18}
OPTIM = {"lr": 1e-2}
SFT = {"type": "sft", "steps": 6, "batch_size": 4, "optim": OPTIM}
RL = {"type": "rl", "steps": 2, "questions_per_step": 2, "group_size": 2, "optim": OPTIM}
RECIPE: dict[str, Any] = {
    "name": "codes",
    "device": "cpu",
    "instruction": "",
    "world": WORLD,
    "tiny_model": {"layers": 2, "width": 32, "heads": 2},
    "search": {"top_k": 1},
    "budget": {"max_calls": 2, "max_turn_tokens": 24, "max_context_tokens": 250},
    "stages": {
        "base": SFT | {"dataset": "base"},
        "sft": SFT | {"dataset": "demonstrations", "train_on": ["policy", "tool"]},
        "rl": RL | {"observations": "simulated"},
    },
    "evaluation": {"splits": {"train": 3, "heldout": 4}, "workflows": ["workflow"]},
}


def write(path: Path, **changes: Any) -> str:
    path.write_text(yaml.safe_dump(RECIPE | changes, sort_keys=False))
    return str(path)


def status(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    return write(tmp_path / "codes.yaml")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run."""
    folder = tmp_path_factory.mktemp("done")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "find_fastest_threads", lambda _: ThreadCounts(1, 1))
        assert status("run", write(folder / "codes.yaml"), "--out", folder / "run") == 0
    return folder / "run"


@pytest.mark.long
def test_from_a_recipe_to_a_report(done: Path) -> None:
    report = json.loads((done / "report.json").read_text())
    assert list(report["evals"]) == ["base", "workflow", "sft", "rl"]
    entry = report["evals"]["rl"]
    assert entry["split"] == "train"  # the first split that the recipe names is the main one
    assert {name: part["n"] for name, part in entry["splits"].items()} == {"heldout": 4, "train": 3}
    assert [compared["n"] for compared in report["pairwise"]] == [3, 3]  # of that split only
    assert report["config"]["world"] == WORLD
    rows = lines(done / "rl" / "metrics.jsonl")
    assert len(rows) == 2
    assert not any("fidelity" in key for row in rows for key in row)  # it judges no observation
    assert len(lines(done / "world" / "corpus.jsonl")) == 18
    assert status("show", done) == 0


def test_its_runs_are_graded_again(done: Path, tmp_path: Path) -> None:
    tasks = done / "world" / "evaluation.jsonl"
    models = ["--model", done / "rl", "--model", done / "sft"]
    assert status("eval", *models, "--tasks", tasks, "--out", tmp_path) == 0
    report = json.loads((tmp_path / "eval.json").read_text())
    assert [entry["split"] for entry in report["evals"].values()] == ["train", "train"]
    assert report["pairwise"][0]["n"] == 3
    assert status("eval", "--simulator", *models[:2], "--limit", 2, "--out", tmp_path) == 0
    [entry] = json.loads((tmp_path / "simulator.json").read_text())["simulators"].values()
    assert entry["n"] == 2
    assert entry["fidelity"]["taught"] is None  # compared with the search, not with the world


def test_its_oracle_is_a_teacher(tmp_path: Path) -> None:
    """The recipe has 12 training questions, 6 of them taught, and halves of them alternate."""
    recipe = write(tmp_path / "codes.yaml", stages={}, collect={"pair_questions": 12})
    out = tmp_path / "run"
    assert status("run", recipe, "--out", out) == 0
    acted = [
        record
        for record in lines(out / "collect" / "demonstrations.jsonl")
        if record["metadata"]["way"] == "coa"
    ]
    assert len(acted) == 3  # a correct answer of this half without a search is not kept
    for record in acted:
        code, [word] = record["metadata"]["code"], record["golden_answers"]
        text = f"{code} means {word}."
        assert record["steps"] == [
            {"action": "search", "arguments": {"query": code}},
            {"observation": f'result 1: "{code}"\n{text}'},
            {"thought": text},
            {"answer": word},
        ]
    pairs = lines(out / "collect" / "pairs.jsonl")
    acting = [pair for pair in pairs if "action" in pair["chosen"][0]]
    assert (len(pairs) - len(acting), len(acting)) == (2, 6)  # a quarter may choose thinking


def test_it_is_written_as_files(recipe: str, tmp_path: Path) -> None:
    name, out = "second_world:CodeBook", tmp_path / "world"
    assert status("world", name, "--settings-from", recipe, "--out", out) == 0
    assert len(lines(out / "corpus.jsonl")) == 18  # from the recipe
    own = tmp_path / "own"
    assert status("world", name, "evaluation.splits.heldout=2", "--with-model", "--out", own) == 0
    assert len(lines(own / "corpus.jsonl")) == 30  # the default: autocoa-mini has another world
    assert len(lines(own / "evaluation.jsonl")) == 2
    assert (own / "model" / "config.json").exists()


def test_the_seed_is_the_runs(recipe: str) -> None:
    tasks = [
        make_data_source(load_recipe(recipe, [setting])).train_tasks()
        for setting in ("seed=0", "seed=0", "seed=1")
    ]
    assert tasks[0] == tasks[1] != tasks[2]
    assert len(tasks[0]) == 12
    assert get_split_titles(load_recipe(recipe, [])) == CodeBook.splits


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("world.code=9", "unknown key 'world.code'; did you mean 'world.codes'?"),
        ("world.codes=2", "'world.codes' is wrong: it must be 3 or more, not 2."),
        (
            "evaluation.splits.helout=1",
            "unknown key 'evaluation.splits.helout'; did you mean 'evaluation.splits.heldout'?",
        ),
        (
            "evaluation.splits={heldout: 0}",
            "'evaluation' is wrong: an evaluation needs questions: give a split, as in"
            " {heldout: 500}.",
        ),
        (
            "world.name=second_world:BookOracle",
            "'second_world:BookOracle' is not a world: make it a subclass of"
            " fieldcraft.data.world.World.",
        ),
    ],
)
def test_mistakes_in_a_recipe(recipe: str, override: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(recipe, [override])
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("stage", "sentence"),
    [
        (SFT | {"dataset": "bse"}, "the world has no data set 'bse': use base, demonstrations."),
        (
            SFT | {"type": "contrastive", "dataset": "pairs"},
            "the world has no pairs: give pairs=FILE, or leave the stage out.",
        ),
    ],
)
def test_what_it_does_not_have(
    tmp_path: Path, stage: dict[str, Any], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write(tmp_path / "codes.yaml", stages={"only": stage})
    assert status("run", recipe, "--out", tmp_path / "run") == 2
    assert capsys.readouterr().err == f"fieldcraft: {sentence}\n"
