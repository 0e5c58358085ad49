"""Memory of the processes of a run, compared with numbers computed by hand."""

from typing import Any

import pytest

from fieldcraft.config.sections import ClusterConfig
from fieldcraft.runs.memory_estimate import (
    CLUSTER_OVERHEAD_BYTES,
    PROCESS_BYTES,
    estimate_activation_bytes,
    estimate_process_memory,
    estimate_rank_memory,
    estimate_stage_cache_bytes,
    estimate_stage_memory,
)
from memory_parts import EMBEDDINGS, LAYERS, PARAMETERS, WIDTH, WORDS, sizes


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


@pytest.mark.parametrize(
    ("overrides", "bytes_per_weight"),
    [((), 0), (("dtype=bfloat16",), 4 + 2), (("dtype=bfloat16", "lora.rank=4"), 0)],
)
def test_the_gradient_of_a_rounded_output_layer_is_summed_in_float32(
    overrides: tuple[str, ...], bytes_per_weight: int
) -> None:
    setup = sizes(*overrides)
    found = estimate_activation_bytes(setup, setup.recipe.stages["rl2"], 0)
    assert found == bytes_per_weight * WORDS * WIDTH


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
    ("overrides", "resident", "gradients"),
    [
        ((), 12, 4),
        (("dtype=bfloat16",), 12 + 2, 4),
        (("stages.rl2.kl_coef=0.1",), 12 + 4, 4),
        (
            ("dtype=bfloat16", "stages.rl2.baseline=critic", "stages.rl2.advantage_scale=none"),
            2 * (12 + 2),
            2 * 4,
        ),
    ],
)
def test_one_process_trains_and_samples_in_turn(
    overrides: tuple[str, ...], resident: int, gradients: int
) -> None:
    setup = sizes(*overrides)
    stage = setup.recipe.stages["rl2"]
    training = gradients * PARAMETERS + estimate_activation_bytes(setup, stage, 4096)
    caches = estimate_stage_cache_bytes(setup, stage, 160)
    phases = estimate_process_memory(setup, stage, ClusterConfig())
    found = {name: sum(parts.values()) for name, parts in phases.items()}
    assert found == {
        "process, training": PROCESS_BYTES + resident * PARAMETERS + training,
        "process, sampling": PROCESS_BYTES + resident * PARAMETERS + caches,
    }
    assert estimate_stage_memory(setup, stage) == max(found.values())


def test_an_asynchronous_stage_in_one_process_has_everything_at_once() -> None:
    setup = sizes("stages.rl2.async.max_staleness=2")
    stage = setup.recipe.stages["rl2"]
    training = (12 + 4) * PARAMETERS + estimate_activation_bytes(setup, stage, 4096)
    rows = min(setup.recipe.max_num_seqs, stage.memory_footprint.rollouts)
    caches = estimate_stage_cache_bytes(setup, stage, rows)
    assert estimate_stage_memory(setup, stage) == (
        PROCESS_BYTES + training + 4 * PARAMETERS + caches  # with a copy of the weights
    )
