"""Plan of a recipe: memory, compared with numbers computed by hand, and output of the command."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import Qwen2Config

from checkpoints import r1_tokenizer
from cli_parts import sentence, status
from fieldcraft.config.cluster import ClusterConfig
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.memory import PROCESS_BYTES, estimate_activation_bytes, estimate_stage_memory
from fieldcraft.scaling.devices import Device, find_device
from fieldcraft.scaling.memory import (
    CLUSTER_OVERHEAD_BYTES,
    estimate_process_memory,
    estimate_rank_memory,
)
from fieldcraft.scaling.plan import make_plan, render_placement
from fieldcraft.scaling.times import (
    StageTimeEstimator,
    TypicalText,
    make_forward_passes,
    make_model_shape,
)
from fieldcraft.types import UserError

LAYERS, WIDTH, WORDS = 4, 64, 1000
EMBEDDINGS = 2 * WIDTH * WORDS
PARAMETERS = EMBEDDINGS + LAYERS * 50_000
SHAPE: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
USUAL = TypicalText(tokens=300.0, policy_share=0.5, tool_seconds=0.0)
BIG = Device("big", 80e9, 1e15, 3e12, 450e9, 50e9)


def sizes(*overrides: str, name: str = "autocoa-mini") -> Any:
    """Return a setup with the fields that the formulas read."""
    recipe = load_recipe(name, list(overrides))
    config = Qwen2Config(**SHAPE)
    return SimpleNamespace(
        recipe=recipe,
        config=config,
        parameters=PARAMETERS,
        trainable_parameters=PARAMETERS,
        has_weights=True,
    )


def cluster_of(**given: Any) -> ClusterConfig:
    return ClusterConfig.model_validate(given)


def test_a_rank_has_its_share() -> None:
    setup = sizes(
        "dtype=bfloat16", "stages.rl2.kl_coef=0.001", "stages.rl2.optim.optimizer_state=8bit"
    )
    stage = setup.recipe.stages["rl2"]
    parts = estimate_rank_memory(setup, stage, cluster_of(trainers=4))
    assert parts["masters and moments"] == PARAMETERS * (4 + 8) / 4
    alone = estimate_rank_memory(setup, stage, cluster_of())
    assert alone["masters and moments"] == pytest.approx(PARAMETERS * (4 + 2 + 8 / 256), abs=1)
    assert parts["gradients"] == PARAMETERS * 4 / 4
    assert parts["read only"] == PARAMETERS * 2 / 4  # the reference
    assert parts["gathered"] == EMBEDDINGS * 2 + 2 * 50_000 * 2 + 50_000 * 4
    assert parts["activations"] == estimate_activation_bytes(setup, stage, 4096)
    assert parts["process"] == PROCESS_BYTES + CLUSTER_OVERHEAD_BYTES


def test_ranks_share_a_line_that_is_too_long_for_one() -> None:
    """Each rank has 5,000 of 10,000 tokens, and the keys and values of the others: 4 layers x 2
    heads x 16 numbers of 4 bytes, twice.
    """
    setup = sizes("budget.max_context_tokens=10000")
    stage = setup.recipe.stages["rl2"]
    parts = estimate_rank_memory(setup, stage, cluster_of(trainers=4, context_parallel=2))
    others = 5000 * 2 * LAYERS * 2 * 16 * 4
    assert parts["activations"] == estimate_activation_bytes(setup, stage, 5000) + others


def test_gradients_outside_of_the_layers_count_where_they_are_more_than_activations() -> None:
    setup = sizes("stages.rl2.optim.micro_batch_tokens=1", "budget.max_context_tokens=1")
    parts = estimate_rank_memory(setup, setup.recipe.stages["rl2"], cluster_of(trainers=2))
    assert parts["activations"] == EMBEDDINGS * (4 + 4)


def test_an_engine_has_whole_weights_and_its_rows() -> None:
    """160 rollouts on four engines are 40 rows of 600 tokens in whole blocks of 32. A token has 2 x
    4 layers x 2 heads x 16 numbers of 4 bytes. With 100 rows for all engines there are 25 rows.
    """
    setup = sizes("max_num_seqs=1000")
    stage = setup.recipe.stages["rl2"]
    parts = estimate_process_memory(setup, stage, cluster_of(trainers=2, engines=4))["engine"]
    token = 2 * LAYERS * 2 * 16 * 4
    assert parts["weights"] == PARAMETERS * 4
    assert parts["caches"] == pytest.approx(40 * 600 * token, rel=0.07)
    few = estimate_process_memory(
        sizes("max_num_seqs=100"), stage, cluster_of(trainers=2, engines=4)
    )["engine"]
    assert few["caches"] == parts["caches"] * 25 / 40
    vllm = sizes("engine={name: vllm, kv_cache_gb: 2.5, urls: ['http://127.0.0.1:9']}")
    served = estimate_process_memory(vllm, stage, cluster_of(trainers=2, engines=4))["engine"]
    assert served["caches"] == 2.5 * 2**30
    wide = estimate_process_memory(
        setup, stage, cluster_of(trainers=2, engines=4, tensor_parallel=2)
    )
    assert wide["engine"]["weights"] == PARAMETERS * 2
    assert wide["engine"]["caches"] == parts["caches"] / 2


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("dtype=bfloat16",),
        ("stages.rl2.kl_coef=0.1",),
        ("stages.rl2.async.max_staleness=2",),
        ("stages.rl2.baseline=critic", "stages.rl2.advantage_scale=none"),
    ],
)
def test_a_run_of_one_process_takes_what_check_says(overrides: tuple[str, ...]) -> None:
    setup = sizes(*overrides)
    for stage in setup.recipe.stages.values():
        rows = estimate_process_memory(setup, stage, ClusterConfig())
        found = max(sum(parts.values()) for parts in rows.values())
        assert found == pytest.approx(estimate_stage_memory(setup, stage), rel=1e-6)


def test_a_stage_whose_budget_changes_is_planned_period_by_period() -> None:
    """Text lengths are proportional to the budget: 300 tokens for 600, so 150 tokens for 300."""
    setup = sizes("stages.rl2.budget=[{until: 20, max_context_tokens: 300}, {}]")
    cluster, stage = cluster_of(trainers=2, engines=2), setup.recipe.stages["rl2"]
    timing = StageTimeEstimator(setup, BIG, USUAL)
    first, second = timing.estimate_periods("rl2", stage, cluster)
    assert [(t.name, t.steps) for t in (first, second)] == [
        ("rl2, steps 1 to 20", 20),
        ("rl2, steps 21 to 60", 40),
    ]
    whole = timing.estimate("rl2", stage, cluster)
    half = StageTimeEstimator(setup, BIG, TypicalText(150.0, 0.5, 0.0)).estimate(
        "rl2", stage, cluster
    )
    assert (first.step_seconds, second.step_seconds) == (half.step_seconds, whole.step_seconds)
    assert first.step_seconds < second.step_seconds
    [usual] = timing.estimate_periods("rl2", sizes().recipe.stages["rl2"], cluster)
    assert (usual.name, usual.steps, usual.step_seconds) == ("rl2", 60, whole.step_seconds)


def test_what_multiplies_is_not_the_input_embedding() -> None:
    setup = sizes()
    assert make_model_shape(setup).parameters == PARAMETERS - WIDTH * WORDS
    setup.config.tie_word_embeddings = True
    assert make_model_shape(setup).parameters == PARAMETERS


def test_passes_over_a_token() -> None:
    setup = sizes("stages.rl2.kl_coef=0.1", "stages.rl2.async.max_staleness=1")
    passes = make_forward_passes(setup.recipe, setup.recipe.stages["rl2"])
    assert (
        passes.frozen_models == 2
    )  # the reference, and the policy whose log-probabilities are recomputed
    assert passes.total == 5
    assert make_forward_passes(setup.recipe, setup.recipe.stages["base"]).total == 3


def test_a_step_in_turns_is_the_sum_and_an_asynchronous_one_the_slower_side() -> None:
    cluster = cluster_of(trainers=2, engines=2)
    turns, both = (
        StageTimeEstimator(setup, BIG, USUAL).estimate("rl2", setup.recipe.stages["rl2"], cluster)
        for setup in (sizes(), sizes("stages.rl2.async.max_staleness=1"))
    )
    assert turns.step_seconds == pytest.approx(
        turns.sampling_seconds + turns.training_seconds + turns.broadcast_seconds
    )
    assert both.step_seconds == pytest.approx(
        max(both.sampling_seconds, both.training_seconds) + both.broadcast_seconds
    )
    assert turns.total_seconds == pytest.approx(60 * turns.step_seconds)


def test_a_recipe_without_processes_is_split() -> None:
    turns = make_plan(sizes(), BIG, 16, USUAL)
    assert turns.is_auto_split
    assert (turns.cluster.trainers, turns.cluster.engines) == (16, 16)
    assert turns.cluster.colocate
    lines = list(render_placement(turns))
    assert lines[1] == (
        "node 1, devices 0-7: trainers 8-15 on devices 0-7; engines 8-15 on devices 0-7"
    )
    ahead = make_plan(sizes("stages.rl2.async.max_staleness=2"), BIG, 16, USUAL)
    assert ahead.cluster.trainers + ahead.cluster.engines == 16
    assert not ahead.cluster.colocate
    assert not make_plan(sizes(), BIG, 1, USUAL).is_auto_split


def test_what_the_recipe_says_is_kept() -> None:
    found = make_plan(sizes("cluster={trainers: 3, engines: 2}"), BIG, 8, USUAL)
    assert not found.is_auto_split
    assert list(render_placement(found)) == [
        "node 0, devices 0-7: trainers 0-2 on devices 0-2; engines 0-1 on devices 3-4"
    ]
    assert found.stages_without_steps == [
        "base",
        "sft1",
        "sft2",
        "sft3",
    ]  # their lengths follow from the world's data


def too_large(setup: Any, memory: float, devices: int) -> str:
    with pytest.raises(UserError) as error:
        make_plan(setup, Device("small", memory, 1e15, 3e12, 450e9, 50e9), devices, USUAL)
    return str(error.value)


def test_what_does_not_fit_is_told_with_what_to_set() -> None:
    setup = sizes()
    setup.parameters = setup.trainable_parameters = 10**9
    message = too_large(setup, 16e9, 1)
    assert message.startswith("stage 'base' does not fit: its process needs ")
    assert message.endswith("set cluster.trainers=2 and use more devices.")
    narrow = sizes("cluster={trainers: 2, engines: 1}", "budget.max_context_tokens=60000")
    assert "its engine needs 10.4 GB" in (message := too_large(narrow, 8e9, 3))
    assert message.endswith("set cluster.tensor_parallel=2, or lower max_num_seqs.")
    many = ["cluster={trainers: 2, engines: 1}", "budget.max_context_tokens=1000000"]
    assert too_large(sizes(*many), 15e9, 3).endswith(
        "set cluster.trainers=2 cluster.context_parallel=2."
    )
    assert "lower optim.micro_batch_tokens, or set " in too_large(sizes(*many), 1e9, 3)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return overrides for the real configuration of a 7B model without weights, and for user
    files.
    """
    folder = tmp_path_factory.mktemp("large")
    Qwen2Config(
        hidden_size=3584,
        intermediate_size=18944,
        num_attention_heads=28,
        num_key_value_heads=4,
        num_hidden_layers=28,
        vocab_size=152064,
        tie_word_embeddings=False,
    ).save_pretrained(folder / "model")
    r1_tokenizer().save_pretrained(folder / "model")
    questions = [
        json.dumps({"question": f"Who is {n}?", "golden_answers": ["Ann"]}) for n in range(9)
    ]
    for name, lines in (("tasks", questions), ("demonstrations", ["{}"] * 6000), ("pairs", ["{}"])):
        (folder / f"{name}.jsonl").write_text("\n".join([*lines, ""]))
    given = [f"{key}={folder / key}.jsonl" for key in ("tasks", "demonstrations", "pairs")]
    return [f"model={folder / 'model'}", "search.url=http://127.0.0.1:9", *given]


def test_the_command_on_a_large_model(
    files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert status("plan", "autocoa-7b", *files, "--gpus", "16", "--gpu", "h100") == 0
    output = capsys.readouterr().out
    assert output.startswith("autocoa-7b: 7,615,616,512 parameters on 16 h100 (80 GB")
    assert "cluster.trainers=16 cluster.engines=16 cluster.colocate=true" in output
    assert "stages.rl2.optim.optimizer_state=float32" in output
    assert "node 1, devices 0-7: trainers 8-15" in output
    assert "rl1: trainer, sampling" in output
    assert " 375 " in output  # 2 epochs of 6,000 demonstrations in batches of 32
    assert "Bottleneck of rl1: " in output


@pytest.mark.parametrize(
    ("variant", "needs"),
    [
        ("autocoa-7b-cluster", ("model", "tasks", "demonstrations", "pairs")),
        ("otc-search-7b-cluster", ("model", "tasks")),
        ("otc-search-7b-ppo", ("model", "tasks")),
    ],
)
def test_the_variants_for_clusters_fit(
    variant: str, needs: tuple[str, ...], files: list[str], tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"title": "Ann", "text": "Ann is."}\n')
    given = [file for file in files if file.startswith(needs)]
    gpus = ("--gpus", "16", "--gpu", "h100")
    assert status("plan", variant, *given, f"corpus={corpus}", *gpus) == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--gpu", "h1000"], "there is no device 'h1000' in the table: use one of a100-80gb, h100"),
        (["--gpus", "0"], "--gpus 0 is not a number of devices: set 1 or more."),
        (["--gpus", "1"], "stage 'sft1' does not fit: its process needs 96.4 GB"),
        (["cluster.engines=9", "--gpus", "8"], "the recipe requires 9 devices (0 trainers and 9"),
        (["stages={}"], "recipe 'autocoa-7b' trains nothing, so there is nothing to plan."),
    ],
)
def test_mistakes(
    files: list[str], arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("plan", "autocoa-7b", *files, *arguments) == 2
    assert complaint in sentence(capsys)


def test_this_machine_is_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("plan", "smoke", "--gpus", "2", "--gpu", "cpu") == 0
    output = capsys.readouterr().out
    assert " parameters on 2 cpu (" in output
    assert "All stages: " in output


def test_the_table_has_what_data_sheets_say() -> None:
    h100 = find_device("h100")
    assert (h100.memory_bytes, h100.flops_per_second, h100.memory_bandwidth) == (
        80e9,
        989e12,
        3.35e12,
    )
