"""The recipes of AFM's web and question agents: the paper's numbers, and sound as they are."""

import json
from pathlib import Path

import pytest

from checkpoints import write_tiny_checkpoint
from collecting_parts import FakeTeacher, settings
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.stages import Sft
from fieldcraft.data.steps_io import write_demonstrations
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.check import check_recipe
from fieldcraft.tools.serving import serving
from fieldcraft.types import Action, Answer, Observation, Role, Task, Thought
from vllm_house import fake_python

DEMONSTRATIONS = {"afm-web-7b": 7607, "afm-web-32b": 7607, "afm-mhqa-3b": 8826}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a user brings: a Qwen2 checkpoint, questions with a corpus, and chains of a team."""
    folder = tmp_path_factory.mktemp("given")
    model = write_tiny_checkpoint(folder / "model", "qwen2")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32768}))
    _, *files = settings(folder, "http://127.0.0.1:1/v1", {"easy": 40})
    chain = [
        Thought("I plan."),
        Thought("Search.", Role.PLAN),
        Thought("I search."),
        Action("search", {"query": "Person1"}),
        Observation("Person1 was born in Town1."),
        Thought("So."),
        Thought("Town1", Role.SUGGEST),
        Thought("It says so."),
        Thought("The score this time is:4", Role.CHECK),
        Thought("Fine."),
        Answer("Town1"),
    ]
    tasks = [Task(f"d{n}", f"Where was Person{n} born?", ("Town1",)) for n in range(256)]
    write_demonstrations(folder / "shown.jsonl", [(task, chain) for task in tasks])
    own = [f for f in files if f.startswith(("tasks", "corpus"))]
    return [f"model={model}", *own, f"demonstrations={folder / 'shown.jsonl'}"]


def stages(recipe: Recipe) -> tuple[Sft, Rl]:
    sft, rl = recipe.stages["sft"], recipe.stages["rl"]
    assert isinstance(sft, Sft)
    assert isinstance(rl, Rl)
    return sft, rl


@pytest.mark.parametrize("name", ["afm-web-7b", "afm-web-32b"])
def test_the_web_agent(name: str, given: list[str]) -> None:
    recipe = load_recipe(name, given)
    sft, rl = stages(recipe)
    assert (sft.batch, sft.epochs, sft.optim.warmup) == (256, 2.5, int(7607 * 2.5 / 256 / 10))
    assert (rl.questions, rl.group, rl.minibatches, rl.steps) == (64, 8, 1, 60)
    assert (rl.clip_low, rl.clip_high, rl.dual_clip) == (0.2, 0.28, 10.0)
    assert (rl.kl_coef, rl.overlong_penalty, rl.loss_weight) == (0, 0, "token")
    assert rl.rewards == {"judge": 1.0}
    assert (recipe.budget.max_calls, recipe.budget.total_tokens) == (24, 32768)
    assert (recipe.evaluation.samples, recipe.evaluation.verifier) == (3, "judge")
    assert [tool.trained_names for tool in recipe.tools] == [{"search"}, {"crawl_page"}]


def test_all_weights_of_7b_and_adapters_of_32b(given: list[str]) -> None:
    small, large = (load_recipe(f"afm-web-{size}", given) for size in ("7b", "32b"))
    assert [stage.optim.lr for stage in stages(small)] == [1.4e-5, 1e-6]
    assert small.lora is None
    assert large.lora is not None
    assert large.dtype == "bfloat16"
    left_out = {"recipe", "lora", "dtype", "max_rows", "stages"}
    assert small.model_dump(exclude=left_out) == large.model_dump(exclude=left_out)
    for one, other in zip(stages(small), stages(large), strict=True):
        assert one.model_dump(exclude={"optim"}) == other.model_dump(exclude={"optim"})


def test_the_agent_for_several_hops(given: list[str]) -> None:
    recipe = load_recipe("afm-mhqa-3b", given)
    sft, rl = stages(recipe)
    assert (sft.batch, sft.epochs, sft.optim.lr) == (128, 4, 1e-5)
    assert sft.optim.warmup == int(0.03 * 4 * 8826 / 128)
    assert rl.questions * rl.group == 512
    assert rl.questions * rl.group / rl.minibatches == 256
    assert (rl.steps, rl.optim.lr, rl.optim.warmup) == (1005, 1e-6, int(0.285 * 1005))
    assert rl.rewards == {"em": 1.0}
    assert (recipe.budget.max_calls, recipe.budget.total_tokens) == (8, 2048 + 8192)


@pytest.mark.parametrize("name", [*DEMONSTRATIONS, "afm-web-32b-cluster"])
def test_they_are_sound_as_they_are(
    name: str, given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openai", reason="remote models need the extra openai")
    pytest.importorskip("trafilatura", reason="pages need the extra web")
    monkeypatch.setenv("SERPER_API_KEY", "secret")
    with serving(FakeTeacher().app) as url:
        judged = [f"judge.url={url}/v1"] if "web" in name else []
        python = [f"engine.python={fake_python(tmp_path)}"] if name.endswith("cluster") else []
        recipe = load_recipe(name, [*given, *judged, *python])
        assert check_recipe(recipe, tmp_path, lambda *_: None) == []


def test_a_judge_that_is_not_there_is_told_before_the_run(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openai", reason="remote models need the extra openai")
    pytest.importorskip("trafilatura", reason="pages need the extra web")
    monkeypatch.setenv("SERPER_API_KEY", "secret")
    recipe = load_recipe("afm-web-7b", [*given, "judge.url=http://127.0.0.1:1/v1"])
    problems = check_recipe(recipe, tmp_path, lambda *_: None)
    assert any(
        "'Qwen2.5-72B-Instruct' does not answer at http://127.0.0.1:1/v1" in p for p in problems
    )
