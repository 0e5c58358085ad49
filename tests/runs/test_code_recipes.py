"""The recipes of agents with code and tools: the papers' settings, accepted by `check`."""

import json
from pathlib import Path

import pytest

from checkpoints import write_tiny_checkpoint
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.stages import Sft
from fieldcraft.data.steps_io import write_demonstrations
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.check import check_recipe
from fieldcraft.types import Answer, Observation, Task, Thought, ThoughtRole, ToolCall

RECIPES = ("torl", "otc-code", "retool", "afm-code-7b", "afm-code-32b")
SUMS = {f"{a} * {b}": str(a * b) for a in range(2, 10) for b in range(11, 19)}  # a batch of 64


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the user's inputs: a Qwen2 checkpoint, questions, demonstrations with programs."""
    folder = tmp_path_factory.mktemp("given")
    model = write_tiny_checkpoint(folder / "model", "qwen2")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32768}))
    records = [{"problem": f"What is {text}?", "answer": result} for text, result in SUMS.items()]
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    # of other questions, since evaluation questions are not trained on
    tasks = [Task(text, f"How much is {text}?", (result,)) for text, result in SUMS.items()]
    demonstrations = [
        [
            Thought("Multiply.", ThoughtRole.PLAN),
            Thought("I compute it."),
            ToolCall("python", {"code": f"print({task.id})"}),
            Observation(task.answers[0]),
            Thought("Fine.", ThoughtRole.REFLECT),
            Thought("I know it."),
            Answer(task.answers[0]),
        ]
        for task in tasks
    ]
    write_demonstrations(folder / "shown.jsonl", zip(tasks, demonstrations, strict=True))
    return {
        "model": model,
        "tasks": folder / "tasks.jsonl",
        "demonstrations": folder / "shown.jsonl",
    }


def recipe_of(name: str, given: dict[str, Path]) -> Recipe:
    return load_recipe(name, [f"{key}={path}" for key, path in given.items()])


def rl(recipe: Recipe) -> Rl:
    stage = recipe.stages["rl"]
    assert isinstance(stage, Rl)
    return stage


def sft(recipe: Recipe) -> Sft:
    stage = recipe.stages["sft"]
    assert isinstance(stage, Sft)
    return stage


@pytest.mark.parametrize(("name", "calls"), [("torl", 1), ("otc-code", 3)])
def test_torl_and_otc_on_code(name: str, calls: int, given: dict[str, Path]) -> None:
    recipe = recipe_of(name, given)
    stage = rl(recipe)
    assert (recipe.budget.max_calls, recipe.budget.max_context_tokens) == (calls, 400 + 3072)
    assert (stage.steps, stage.questions_per_step, stage.group_size, stage.minibatches) == (
        1000,
        128,
        16,
        1,
    )
    assert (stage.kl_coef, stage.entropy_coef, stage.temperature, stage.optim.lr) == (0, 0, 1, 1e-6)
    assert recipe.tools[0].settings == {"errors": "last-line"}
    assert recipe.verdict_reward == "math"


def test_otc_trains_as_torl_does_but_for_calls_and_reward(given: dict[str, Path]) -> None:
    torl, otc = (recipe_of(name, given) for name in ("torl", "otc-code"))
    left_out = {"name", "budget", "stages", "closed_book", "evaluation"}
    assert otc.model_dump(exclude=left_out) == torl.model_dump(exclude=left_out)
    assert otc.evaluation.splits == torl.evaluation.splits
    assert rl(otc).model_dump(exclude={"rewards"}) == rl(torl).model_dump(exclude={"rewards"})
    assert (rl(torl).rewards, rl(otc).rewards) == ({"plus_minus": 1.0}, {"otc-grpo": 1.0})
    assert rl(otc).otc_smoothing is None  # c is the limit on calls


def test_retool(given: dict[str, Path]) -> None:
    recipe = recipe_of("retool", given)
    stage = rl(recipe)
    assert (sft(recipe).epochs, recipe.budget.max_context_tokens) == (2, 16384)
    assert (stage.baseline, stage.steps, stage.kl_coef, stage.optim.lr) == ("critic", 400, 0, 1e-6)
    assert stage.questions_per_step * stage.group_size / stage.minibatches == 512
    assert stage.rewards == {"plus_minus": 1.0}


def test_afm_code(given: dict[str, Path]) -> None:
    recipe = recipe_of("afm-code-7b", given)
    tuned, stage = sft(recipe), rl(recipe)
    assert (tuned.batch_size, tuned.epochs, tuned.optim.lr) == (32, 2, 3e-5)
    assert (tuned.optim.warmup_steps, tuned.optim.count_warmup_steps(59939 // 32 * 2)) == (0.1, 375)
    assert (recipe.budget.max_calls, recipe.budget.max_context_tokens) == (8, 32768)
    assert (stage.steps, stage.questions_per_step, stage.group_size) == (150, 256, 8)
    assert stage.questions_per_step / stage.minibatches == 32
    assert (stage.clip_low, stage.clip_high, stage.dual_clip) == (0.2, 0.28, 3.0)
    assert (stage.kl_coef, stage.group_filter, stage.loss_aggregation) == (0, "reward", "token")
    assert stage.resolve_overlong_buffer(recipe.budget) == (32768, 32768 // 8)
    assert (stage.optim.lr, stage.optim.warmup_steps) == (1e-6, 10)
    assert stage.rewards == {"answer_format": 1.0}


@pytest.mark.parametrize("name", ["afm-code-32b", "afm-code-32b-cluster"])
def test_afm_code_of_32b(name: str, given: dict[str, Path]) -> None:
    """The context grows: 16k up to step 40, then 32k."""
    small, recipe = recipe_of("afm-code-7b", given), recipe_of(name, given)
    tuned, stage = sft(recipe), rl(recipe)
    assert (tuned.batch_size, tuned.epochs, tuned.optim.lr) == (64, 2, 1.4e-5)
    assert (stage.steps, stage.questions_per_step, stage.group_size) == (120, 256, 8)
    assert stage.questions_per_step / stage.minibatches == 32
    first, second = stage.budget_periods(recipe.budget)
    assert (first.start_step, first.end_step, first.budget.max_context_tokens) == (0, 40, 16384)
    assert (second.start_step, second.end_step, second.budget) == (40, 120, small.budget)
    assert stage.resolve_overlong_buffer(first.budget) == (16384, 16384 // 8)
    assert stage.resolve_overlong_buffer(second.budget) == (32768, 32768 // 8)
    changed = {"steps", "budget", "overlong_buffer", "optim", "asynchronous", "sampler_is_cap"}
    assert stage.model_dump(exclude=changed) == rl(small).model_dump(exclude=changed)
    assert (recipe.evaluation.temperature, recipe.evaluation_recipe.budget.max_calls) == (0.6, 12)


def problems(recipe: Recipe, folder: Path) -> list[str]:
    return check_recipe(recipe, folder, lambda *_: None)


@pytest.mark.parametrize("name", RECIPES)
def test_they_are_sound_as_they_are(name: str, given: dict[str, Path], tmp_path: Path) -> None:
    assert problems(recipe_of(name, given), tmp_path) == []


def test_questions_for_programs(given: dict[str, Path], tmp_path: Path) -> None:
    """The questions have tests and no answers, so the reward `math` cannot grade them."""
    tests = {"inputs": ["1"], "outputs": ["1"]}
    records = [{"problem": f"Print the {n}th word.", "tests": tests} for n in range(4)]
    (tmp_path / "tasks.json").write_text(json.dumps(records))
    files = given | {"tasks": tmp_path / "tasks.json"}
    recipe = recipe_of("torl", files)
    [problem] = problems(recipe, tmp_path)
    assert "4 of 4 questions" in problem
    assert "nothing that the reward 'math' grades by: set verdict_reward=" in problem
    by_tests = recipe.model_copy(update={"verdict_reward": "stdin_tests"})
    assert problems(by_tests, tmp_path) == []
