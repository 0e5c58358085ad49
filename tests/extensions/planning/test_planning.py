"""Plan of a recipe: placement, advice, and output of the command."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config

from checkpoints import r1_tokenizer
from cli_parts import sentence, status
from fieldcraft.extensions.planning.devices import (
    MAX_DEVICES,
    Device,
    find_device,
    split_into_nodes,
)
from fieldcraft.extensions.planning.plan import find_min_trainers, make_plan, render_placement
from fieldcraft.runs.memory_estimate import estimate_rank_memory
from fieldcraft.runs.memory_limit import read_memory_limit
from fieldcraft.types import UserError
from memory_parts import sizes

BIG = Device("big", 80e9)


def test_a_recipe_without_processes_is_split() -> None:
    turns = make_plan(sizes(), BIG, 16)
    assert turns.is_auto_split
    assert (turns.cluster.trainers, turns.cluster.engines) == (16, 16)
    assert turns.cluster.colocate
    lines = list(render_placement(turns))
    assert lines[1] == (
        "node 1, devices 0-7: trainers 8-15 on devices 0-7; engines 8-15 on devices 0-7"
    )
    ahead = make_plan(sizes("stages.rl2.async.max_staleness=2"), BIG, 16)
    assert (ahead.cluster.trainers, ahead.cluster.engines) == (8, 8)
    assert not ahead.cluster.colocate
    assert not make_plan(sizes(), BIG, 1).is_auto_split


def test_more_than_half_of_the_devices_train_a_model_that_needs_them() -> None:
    setup = sizes("stages.rl2.async.max_staleness=2")
    setup.parameters = setup.trainable_parameters = 10**9
    found = make_plan(setup, Device("small", 9.5e9), 6)
    assert (found.cluster.trainers, found.cluster.engines) == (4, 2)
    few = "4 devices are too few for at least 4 trainers plus an engine: use more, or set"
    with pytest.raises(UserError, match=few):
        make_plan(setup, Device("small", 9.5e9), 4)


def test_what_the_recipe_says_is_kept() -> None:
    found = make_plan(sizes("cluster={trainers: 3, engines: 2}"), BIG, 8)
    assert not found.is_auto_split
    assert list(render_placement(found)) == [
        "node 0, devices 0-7: trainers 0-2 on devices 0-2; engines 0-1 on devices 3-4"
    ]


def too_large(setup: Any, memory: float, devices: int) -> str:
    with pytest.raises(UserError) as error:
        make_plan(setup, Device("small", memory), devices)
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
    assert "All stages fit; the largest process uses 30% of its device (rl1: " in output


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
        (["--gpus", "0"], "--gpus 0 is not a number of devices: set 1 or more, up to 100000."),
        (["--gpus", "1000000"], "--gpus 1000000 is not a number of devices: set 1 or more, up to"),
        (["--gpus", "1"], "stage 'sft1' does not fit: its process needs 99.7 GB"),
        (["cluster.engines=9", "--gpus", "8"], "the recipe requires 9 devices (0 trainers and 9"),
        (
            ["cluster.tensor_parallel=4", "engine={name: vllm, python: /bin/sh}", "--gpus", "2"],
            "an engine needs cluster.tensor_parallel=4 devices and there are 2: use more,",
        ),
        (["stages={}"], "recipe 'autocoa-7b' trains nothing, so there is nothing to plan."),
    ],
)
def test_mistakes(
    files: list[str], arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("plan", "autocoa-7b", *files, *arguments) == 2
    assert complaint in sentence(capsys)


@pytest.mark.parametrize("arguments", [["--gpus", "0"], ["--gpu", "foo"], ["--gpus", "1000000"]])
def test_devices_are_checked_before_torch_is_imported(arguments: list[str]) -> None:
    program = (
        "import sys; from fieldcraft.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, "plan", "smoke", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "False\n"), ended.stderr
    assert ended.stderr.startswith("fieldcraft: "), ended.stderr


def test_the_largest_number_of_devices() -> None:
    """The time is linear in the devices: with quadratic steps, this would take hours."""
    found = make_plan(sizes("stages.rl2.async.max_staleness=2"), BIG, MAX_DEVICES)
    assert (found.cluster.trainers, found.cluster.engines) == (50_000, 50_000)
    assert [*render_placement(found)][-1] == (
        "node 12499, devices 0-7: engines 49992-49999 on devices 0-7"
    )
    setup = sizes("stages.rl2.async.max_staleness=2")
    setup.parameters = setup.trainable_parameters = 10**15  # never fits
    assert "cluster.trainers=50000" not in too_large(setup, 80e9, MAX_DEVICES)


def test_the_fewest_trainers_that_fit_are_found() -> None:
    """As many as a search through all numbers finds."""
    setup = sizes("stages.rl2.async.max_staleness=2")
    setup.parameters = setup.trainable_parameters = 10**9
    for memory in (7e9, 8e9, 9.5e9, 12e9, 100e9):
        device = Device("small", memory)
        numbers = range(1, 40)
        clusters = [setup.recipe.cluster.model_copy(update={"trainers": n}) for n in numbers]
        stages = setup.recipe.stages.values()
        fitting = [
            cluster.trainers
            for cluster in clusters
            if all(
                sum(estimate_rank_memory(setup, stage, cluster).values()) <= 0.9 * memory
                for stage in stages
            )
        ]
        assert find_min_trainers(setup, device, numbers) == (fitting[0] if fitting else None)


def test_this_machine_is_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("plan", "smoke", "--gpus", "2", "--gpu", "cpu") == 0
    assert " parameters on 2 cpu (" in capsys.readouterr().out
    core = find_device("cpu")
    assert core.memory_bytes * core.devices_per_node == pytest.approx(read_memory_limit())


def test_devices_of_nodes() -> None:
    h100 = find_device("h100")
    assert h100.memory_bytes == 80e9
    assert split_into_nodes(h100, 16) == [8, 8]
    assert split_into_nodes(h100, 11) == [8, 3]
    with pytest.raises(UserError, match="--gpus 0 is not a number of devices: set 1 or more"):
        split_into_nodes(h100, 0)
    with pytest.raises(UserError, match=r"no device 'h10' .* did you mean 'h100'\?"):
        find_device("h10")
