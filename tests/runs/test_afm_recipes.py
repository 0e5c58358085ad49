"""The recipes of AFM's web and question agents: the paper's settings, accepted by `check`."""

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
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import Answer, Observation, Task, Thought, ThoughtRole, ToolCall
from vllm_rig import fake_python

WEB = ("afm-web-7b", "afm-web-32b", "afm-web-32b-lora", "afm-web-32b-script")
MHQA = ("afm-mhqa-3b", "afm-mhqa-7b", "afm-mhqa-3b-script", "afm-mhqa-7b-script")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Write user files: a Qwen2 checkpoint, questions with a corpus, and chains of a team."""
    folder = tmp_path_factory.mktemp("given")
    model = write_tiny_checkpoint(folder / "model", "qwen2")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32768}))
    _, *files = settings(folder, "http://127.0.0.1:1/v1", {"easy": 40})
    chain = [
        Thought("I plan."),
        Thought("Search.", ThoughtRole.PLAN),
        Thought("I search."),
        ToolCall("search", {"query": "Person1"}),
        Observation("Person1 was born in Town1."),
        Thought("So."),
        Thought("Town1", ThoughtRole.SUGGEST),
        Thought("It says so."),
        Thought("The score this time is:4", ThoughtRole.CHECK),
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
    assert (sft.batch_size, sft.epochs, sft.optim.schedule) == (256, 2.5, "cosine")
    assert (sft.optim.lr, sft.optim.warmup_steps) == (1.4e-5, 0.1)
    assert (rl.optim.lr, rl.optim.warmup_steps, rl.optim.weight_decay) == (1e-6, 3, 0.1)
    assert recipe.lora is None
    assert (rl.questions_per_step, rl.group_size, rl.minibatches, rl.steps) == (64, 8, 1, 60)
    assert (rl.clip_low, rl.clip_high, rl.dual_clip) == (0.2, 0.28, 10.0)
    assert (rl.kl_coef, rl.overlong_penalty, rl.loss_aggregation) == (0, 0, "token")
    assert rl.rewards == {"judge": 1.0}
    assert (recipe.budget.max_calls, recipe.budget.max_context_tokens) == (24, 32768)
    settings = recipe.evaluation
    assert (settings.samples, settings.verifier) == ({"default": 3}, "judge")
    assert settings.explicit_keys == {"temperature": 1.0, "top_p": 0.9, "top_k": 20}
    assert [tool.trained_names for tool in recipe.tools] == [{"search"}, {"crawl_page"}]


def test_all_web_agents_are_trained_alike_but_for_their_memory(given: list[str]) -> None:
    small, large, adapters, _ = (load_recipe(name, given) for name in WEB)
    for other in (large, adapters):
        left_out = {"name", "lora", "max_num_seqs", "stages"}
        assert small.model_dump(exclude=left_out) == other.model_dump(exclude=left_out)
        for one, another in zip(stages(small), stages(other), strict=True):
            assert one.model_dump(exclude={"optim"}) == another.model_dump(exclude={"optim"})
    assert [stage.optim.optimizer_state for stage in stages(large)] == ["float32"] * 2
    assert adapters.lora is not None
    assert [stage.optim.lr for stage in stages(adapters)] == [1e-4, 1e-5]


def test_the_script_of_the_web_agent(given: list[str]) -> None:
    paper, script = (load_recipe(name, given) for name in ("afm-web-32b", "afm-web-32b-script"))
    sft, rl = stages(script)
    assert (sft.batch_size, sft.epochs, sft.optim.lr) == (128, 4, 1.4e-5)
    assert (sft.optim.warmup_steps, sft.optim.schedule) == (0.1, "linear")
    assert rl == stages(paper)[1]
    assert script.judge.model == "gpt-4.1-mini"


@pytest.mark.parametrize("name", ["afm-mhqa-3b", "afm-mhqa-7b"])
def test_the_agent_for_several_hops(name: str, given: list[str]) -> None:
    recipe = load_recipe(name, given)
    sft, rl = stages(recipe)
    assert (sft.batch_size, sft.epochs, sft.optim.lr, sft.optim.warmup_steps) == (
        256,
        2.5,
        1.4e-5,
        0.03,
    )
    assert sft.optim.schedule == "cosine"
    assert (rl.questions_per_step, rl.group_size, rl.clip_low, rl.clip_high) == (64, 8, 0.2, 0.28)
    assert rl.questions_per_step * rl.group_size / rl.minibatches == 256
    assert (rl.steps, rl.optim.lr, rl.optim.warmup_steps) == (1005, 1e-6, 0.285)
    assert (rl.kl_coef, rl.group_filter, rl.loss_aggregation) == (0, "reward", "token")
    assert rl.rewards == {"em": 1.0}
    assert (recipe.budget.max_calls, recipe.budget.max_context_tokens) == (7, 2048 + 8192)


@pytest.mark.parametrize(("size", "batch", "lr"), [("3b", 128, 1e-5), ("7b", 32, 2e-5)])
def test_the_script_of_the_agent_for_several_hops(
    size: str, batch: int, lr: float, given: list[str]
) -> None:
    paper, script = (load_recipe(f"afm-mhqa-{size}{end}", given) for end in ("", "-script"))
    sft, rl = stages(script)
    assert (sft.batch_size, sft.epochs, sft.optim.lr, sft.optim.warmup_steps) == (
        batch,
        4,
        lr,
        0.03,
    )
    assert sft.optim.schedule == "linear"
    assert (rl.questions_per_step, rl.group_size, rl.minibatches) == (512, 1, 2)
    assert (rl.baseline, rl.advantage_scale, rl.group_filter) == ("critic", "batch", "none")
    assert (rl.clip_low, rl.clip_high, rl.dual_clip) == (0.2, 0.2, 3.0)
    assert (rl.kl_coef, rl.kl_placement) == (0.001, "loss")
    assert rl.critic.optim is not None
    assert (rl.critic.optim.lr, rl.critic.optim.warmup_steps) == (1e-5, 0.05)
    assert (rl.steps, rl.optim.lr, rl.optim.warmup_steps) == (1005, 1e-6, 0.285)
    left_out = {"name", "stages"}
    assert paper.model_dump(exclude=left_out) == script.model_dump(exclude=left_out)


def test_the_mini_recipe_learns_with_the_whole_of_dapo() -> None:
    pytest.importorskip("trafilatura", reason="pages need the extra web")
    recipe = load_recipe("afm-mini", [])
    rl = recipe.stages["rl"]
    assert isinstance(rl, Rl)
    assert (rl.baseline, rl.advantage_scale, rl.loss_aggregation) == ("group", "group", "token")
    assert (rl.clip_low, rl.clip_high, rl.minibatches) == (0.2, 0.28, 2)
    assert (rl.group_filter, rl.overlong_penalty) == ("accuracy", 0.5)
    assert rl.resolve_overlong_buffer(recipe.budget) == (720, 144)
    assert rl.train_truncated


def test_questions_are_selected_apart_for_web_and_code(given: list[str]) -> None:
    web, code = (load_recipe(f"afm-select-{kind}", given) for kind in ("web", "code"))
    assert web.select is not None
    assert code.select is not None
    assert (
        web.select.closed_book_model,
        web.select.closed_book_samples,
        web.select.max_closed_book_accuracy,
    ) == ("start", 32, 0.3)
    assert (web.select.solver, web.select.overlap) == (None, "drop")
    assert [tool.trained_names for tool in web.tools] == [{"search"}, {"crawl_page"}]
    assert (code.select.closed_book_model, code.select.solver, code.select.solver_rollouts) == (
        None,
        "start",
        8,
    )
    assert code.select.overlap == "keep"
    for selected, trained in ((web, "afm-web-7b"), (code, "afm-code-7b")):
        agent = load_recipe(trained, given)
        for key in ("dialect", "tools", "budget"):
            assert getattr(selected, key) == getattr(agent, key)


@pytest.mark.parametrize("name", [*WEB, *MHQA, "afm-web-32b-cluster"])
def test_they_are_sound_as_they_are(
    name: str, given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openai", reason="remote models need the extra openai")
    pytest.importorskip("trafilatura", reason="pages need the extra web")
    monkeypatch.setenv("SERPER_API_KEY", "secret")
    with serve_in_thread(FakeTeacher().app) as url:
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
