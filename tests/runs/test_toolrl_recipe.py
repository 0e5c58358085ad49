"""The recipe of ToolRL: the paper's settings, accepted by `check`, and runnable."""

import json
from pathlib import Path

import pytest
import yaml

from checkpoints import write_tiny_checkpoint
from fieldcraft import recipes
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import Event, EventBus, TrajectoryCompleted, write_metrics
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.run import run_recipe
from fieldcraft.types import Author, Trajectory

TOWNS = ("Aa", "Bb", "Cc", "Dd")
TINY = [
    *("budget.max_turn_tokens=128", "evaluation.splits.heldout=2", "device=cpu"),
    *(
        "stages.rl.steps=2",
        "stages.rl.questions_per_step=2",
        "stages.rl.group_size=2",
        "stages.rl.minibatches=2",
    ),
    *("stages.rl.optim.lr=0.001", "dtype=float32"),
    "stages.rl.optim.activation_checkpointing=false",
]


def record(town: str) -> dict[str, str]:
    call = json.dumps({"name": "sun", "parameters": {"in": town}})
    return {
        "instruction": "Tools:\n1. Name: sun",
        "input": f"**Dialogue Records History**\n<user> {town}? </user>",
        "output": f"<think> So. </think>\n<tool_call>\n{call}\n</tool_call>",
    }


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the user's inputs: a Qwen2 checkpoint, and a file of ToolRL's, which contains both
    questions and demonstrations."""
    folder = tmp_path_factory.mktemp("given")
    model = write_tiny_checkpoint(folder / "model", "qwen2")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    (folder / "rlla.json").write_text(json.dumps([record(town) for town in TOWNS]))
    return [f"model={model}", f"tasks={folder / 'rlla.json'}"]


def rl(recipe: Recipe) -> Rl:
    stage = recipe.stages["rl"]
    assert isinstance(stage, Rl)
    return stage


def test_the_numbers_are_those_of_the_paper(given: list[str]) -> None:
    recipe = load_recipe("toolrl", given)
    stage, budget = rl(recipe), recipe.budget
    assert (recipe.verdict_reward, recipe.tools) == ("toolrl_exact", ())
    assert (budget.max_turn_tokens, budget.max_context_tokens) == (1024, 2048 + 1024)
    assert (
        stage.questions_per_step,
        stage.group_size,
        stage.questions_per_step / stage.minibatches,
    ) == (512, 4, 128)
    heldout = recipe.evaluation.splits["heldout"]
    assert (heldout, stage.steps) == (4000 * 2 // 100, (4000 - heldout) // 512 * 15)
    assert (stage.temperature, stage.clip_low, stage.clip_high) == (1.0, 0.2, 0.2)
    assert (stage.baseline, stage.advantage_scale, stage.epochs) == ("group", "group", 1)
    assert (stage.kl_coef, stage.optim.lr, stage.optim.warmup_steps) == (0.0, 1e-6, 0)
    assert stage.rewards == {"toolrl": 1.0, "toolrl_format": 1.0}


def problems(recipe: Recipe, folder: Path) -> list[str]:
    return check_recipe(recipe, folder, lambda *_: None)


def test_it_is_sound_as_it_is(given: list[str], tmp_path: Path) -> None:
    assert problems(load_recipe("toolrl", given), tmp_path) == []


def test_questions_without_wanted_calls(given: list[str], tmp_path: Path) -> None:
    questions = [{"question": f"{town}?", "answer": town} for town in TOWNS]
    (tmp_path / "tasks.json").write_text(json.dumps(questions))
    recipe = load_recipe("toolrl", [given[0], f"tasks={tmp_path / 'tasks.json'}"])
    [problem] = problems(recipe, tmp_path)
    assert "4 of 4 questions" in problem
    assert "nothing that the reward 'toolrl_exact' grades by" in problem


def test_questions_that_want_no_call(given: list[str], tmp_path: Path) -> None:
    answer_only = {"output": "<think> So. </think>\n<response> No. </response>"}
    (tmp_path / "tasks.json").write_text(json.dumps([record(town) | answer_only for town in TOWNS]))
    recipe = load_recipe("toolrl", [given[0], f"tasks={tmp_path / 'tasks.json'}"])
    assert problems(recipe, tmp_path) == []


def test_a_prompt_that_leaves_no_room_for_the_turn(given: list[str], tmp_path: Path) -> None:
    recipe = load_recipe("toolrl", [*given, "budget.max_context_tokens=1090"])
    [problem] = problems(recipe, tmp_path)
    assert "no room for an answer of 1024 tokens within budget.max_context_tokens=1090" in problem


def taught(folder: Path) -> Path:
    """Return the recipe with a supervised stage before it."""
    data = yaml.safe_load((Path(recipes.__file__).parent / "toolrl.yaml").read_text("utf-8"))
    sft = {
        **{"type": "sft", "dataset": "demonstrations", "train_on": ["policy"]},
        **{"steps": 150, "batch_size": 4, "optim": {"lr": 0.005}},
    }
    data["stages"] = {"sft": sft, **data["stages"]}
    (folder / "toolrl.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    return folder / "toolrl.yaml"


@pytest.mark.long
def test_it_runs(given: list[str], tmp_path: Path) -> None:
    demonstrations = given[1].replace("tasks=", "demonstrations=")
    recipe = load_recipe(str(taught(tmp_path)), [*given, demonstrations, *TINY])
    sampled: list[Trajectory] = []

    def watch(event: Event) -> None:
        if isinstance(event, TrajectoryCompleted) and event.phase == "rl":
            sampled.append(event.trajectory)

    report = run_recipe(recipe, tmp_path / "run", EventBus([write_metrics, watch]))
    formed = {name: found["format_rate"] for name, found in report["evals"].items()}
    assert (formed["base"], formed["sft"]) == (0.0, 1.0)
    rows = (tmp_path / "run/rl/metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [0, 1]
    assert all(json.loads(row)["grad_norm"] > 0 for row in rows)
    for trajectory in sampled:
        assert [s.author for s in trajectory.segments] == [Author.PROMPT, Author.POLICY]
        assert trajectory.segments[0].text.startswith("<|im_start|>system\nTools:")
        scores = trajectory.rewards
        assert trajectory.reward == (scores["toolrl"] or 0.0) + (scores["toolrl_format"] or 0.0)
        assert trajectory.is_correct is (trajectory.reward == 4.0)
    # An answer with the tool but not the town has 1 + 1 of 3 points: 6 * 2 / 3 - 3, and the layout.
    assert max(t.reward or -3.0 for t in sampled) >= 2.0
