"""The recipes of Search-R1 and OTC: the papers' settings, accepted by `check`, and runnable."""

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoints import write_tiny_checkpoint
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import EventBus, write_metrics
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.run import run_recipe
from vllm_rig import fake_python

RECIPES = ("search-r1", "search-r1-grpo", "otc-search", "otc-search-7b")
CLUSTER = ("otc-search-7b-cluster", "otc-search-7b-ppo")
TOWNS = {"Ada Lind": "Northport", "Bo Berg": "Southport", "Cy Dahl": "Eastport"}
TINY = [
    *("budget.max_turn_tokens=12", "evaluation.splits.heldout=1", "device=cpu"),
    *(
        "stages.rl.steps=2",
        "stages.rl.questions_per_step=2",
        "stages.rl.group_size=2",
        "stages.rl.minibatches=2",
    ),
    *("stages.rl.optim.warmup_steps=0", "stages.rl.optim.lr=0.001"),
]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the user's inputs: a Qwen2 checkpoint, questions, a corpus."""
    folder = tmp_path_factory.mktemp("given")
    model = write_tiny_checkpoint(folder / "model", "qwen2")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32768}))
    tasks = [{"question": f"Where is {n} from?", "golden_answers": [t]} for n, t in TOWNS.items()]
    corpus = [{"title": n, "text": f"{n} is from {t}."} for n, t in TOWNS.items()]
    for name, records in (("tasks", tasks), ("corpus", corpus)):
        text = "".join(f"{json.dumps(record)}\n" for record in records)
        (folder / f"{name}.jsonl").write_text(text)
    return [f"{key}={folder / name}" for key, name in NAMES.items()]


NAMES = {"model": "model", "tasks": "tasks.jsonl", "corpus": "corpus.jsonl"}


def rl(recipe: Recipe) -> Rl:
    stage = recipe.stages["rl"]
    assert isinstance(stage, Rl)
    return stage


@pytest.mark.parametrize("name", RECIPES)
def test_the_numbers_are_those_of_the_authors_scripts(name: str, given: list[str]) -> None:
    recipe = load_recipe(name, given)
    stage, budget = rl(recipe), recipe.budget
    assert (budget.max_calls, budget.max_turn_tokens, budget.max_context_tokens) == (
        4,
        500,
        4096 + 500,
    )
    assert recipe.search.top_k == 3
    assert (stage.questions_per_step, stage.steps, stage.temperature) == (512, 1005, 1.0)
    assert stage.questions_per_step * stage.group_size / stage.minibatches == 256
    assert (stage.clip_low, stage.clip_high, stage.dual_clip) == (0.2, 0.2, None)
    assert (stage.kl_coef, stage.entropy_coef, stage.epochs) == (0.001, 0.001, 1)
    assert (stage.optim.lr, stage.optim.warmup_steps) == (1e-6, 0.285)
    assert (stage.optim.beta2, stage.optim.weight_decay, stage.optim.max_grad_norm) == (
        0.999,
        0.01,
        1,
    )
    assert stage.optim.schedule == "constant"
    assert stage.collapse_threshold == 0.5


def test_ppo_and_grpo_differ_as_they_do_there(given: list[str]) -> None:
    ppo, grpo = (rl(load_recipe(name, given)) for name in ("search-r1", "search-r1-grpo"))
    assert (ppo.group_size, ppo.baseline, ppo.advantage_scale, ppo.kl_placement) == (
        1,
        "critic",
        "batch",
        "reward",
    )
    assert (grpo.group_size, grpo.baseline, grpo.advantage_scale, grpo.kl_placement) == (
        5,
        "group",
        "group",
        "loss",
    )
    assert ppo.loss_aggregation == grpo.loss_aggregation == "token"
    critic = ppo.critic
    assert (critic.backbone, critic.clip, critic.gamma, critic.gae_lambda) == (
        "separate",
        0.5,
        1.0,
        1.0,
    )
    assert critic.optim is not None
    assert (critic.optim.lr, critic.optim.warmup_steps) == (1e-5, 0.015)


def test_otc_changes_prompt_and_reward_and_nothing_else(given: list[str]) -> None:
    changed = {"rewards", "loss_aggregation", "optim", "sampler_is_cap"}

    def keys(name: str) -> dict[str, Any]:
        return rl(load_recipe(name, given)).model_dump(exclude=changed)

    assert keys("otc-search") == keys("otc-search-7b") == keys("search-r1-grpo")
    for name in ("otc-search", "otc-search-7b"):
        recipe = load_recipe(name, given)
        assert recipe.dialect == "otc"
        assert (rl(recipe).rewards, rl(recipe).loss_aggregation) == ({"otc-grpo": 1.0}, "sequence")
        assert rl(recipe).otc_smoothing is None  # c is the limit on calls


def test_otc_ppo_is_search_r1s_ppo_with_another_reward(given: list[str]) -> None:
    changed = {"rewards", "loss_aggregation", "sampler_is_cap", "optim", "critic"}
    mine, theirs = (load_recipe(name, given) for name in ("otc-search-7b-ppo", "search-r1"))
    assert rl(mine).model_dump(exclude=changed) == rl(theirs).model_dump(exclude=changed)
    assert (rl(mine).loss_aggregation, rl(theirs).loss_aggregation) == ("sequence", "token")
    assert (mine.dialect, rl(mine).rewards, rl(mine).otc_smoothing) == (
        *("otc", {"otc-ppo": 1.0}, None),
    )
    assert (mine.budget, mine.search) == (theirs.budget, theirs.search)
    same = {"activation_checkpointing"}
    critics = [rl(recipe).critic.model_dump(exclude={"optim": same}) for recipe in (mine, theirs)]
    assert critics[0] == critics[1]
    assert (mine.cluster.trainers, mine.cluster.engines, mine.cluster.colocate) == (8, 8, True)


def problems(recipe: Recipe, folder: Path) -> list[str]:
    return check_recipe(recipe, folder, lambda *_: None)


@pytest.mark.parametrize("name", [*RECIPES, *CLUSTER])
def test_they_are_sound_as_they_are(name: str, given: list[str], tmp_path: Path) -> None:
    if name in CLUSTER:
        given = [*given, f"engine.python={fake_python(tmp_path)}"]
    recipe = load_recipe(name, given)
    assert problems(recipe, tmp_path) == []
    assert recipe.model is not None
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in recipe.model.glob("*.json"):
        (bare / file.name).write_bytes(file.read_bytes())
    missing = problems(load_recipe(name, [*given, f"model={bare}"]), tmp_path)
    assert missing == [f"{bare} holds no weights: copy its .safetensors files there."]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, []) for name in RECIPES[:2]),
        *(pytest.param(name, [], marks=pytest.mark.slow) for name in RECIPES[2:]),
        ("search-r1", ["dialect=otc", "stages.rl.rewards={otc-ppo: 1.0}"]),
    ],
)
def test_they_run(name: str, changes: list[str], given: list[str], tmp_path: Path) -> None:
    recipe = load_recipe(name, [*given, *TINY, *changes])
    report = run_recipe(recipe, tmp_path / "run", EventBus([write_metrics]))
    workflows = {"rag", "prompted-react"} if name.startswith("otc") else {"rag"}
    assert set(report["evals"]) == {"base", "rl"} | workflows
    rows = (tmp_path / "run/rl/metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [0, 1]
    for row in map(json.loads, rows):  # entropy and KL train every rollout
        assert row["grad_norm"] > 0
        assert ("critic/loss" in row) == name.endswith("r1")
        assert ("kl_ref" in row) != name.endswith("r1")  # k1 in the reward, or k3 in the loss
    assert (tmp_path / "run/rl/model/model.safetensors").exists()
