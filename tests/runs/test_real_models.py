"""The recipes for DeepSeek-R1's distilled models: complete runs on tiny models."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from checkpoints import r1_tokenizer, write_tiny_r1
from fieldcraft.cli.main import main
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.data.steps_io import ContrastivePair
from fieldcraft.engine.threads import ThreadCounts
from fieldcraft.extensions.formats.autocoa import write_demonstrations, write_pairs
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import EventBus, write_metrics
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.runs import context
from fieldcraft.runs.run import run_recipe
from fieldcraft.train.model import load_model, load_tokenizer
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Answer, Observation, Task, Thought, ToolCall
from vllm_rig import fake_python

STAGES = ("sft1", "sft2", "sft3", "rl1", "rl2")
TOWNS = {"Ada Lind": "Northport", "Bo Berg": "Southport", "Cy Dahl": "Eastport", "Di Ek": "Oslo"}
SHORT = (
    "budget={max_calls: 2, max_turn_tokens: 16, max_context_tokens: 1500}",
    *(f"stages.{name}.batch_size=2" for name in STAGES[:3]),
    *(f"stages.{name}.epochs=0.5" for name in STAGES[1:3]),
    *(f"stages.{name}.{key}" for name in STAGES[3:] for key in ("steps=1", "questions_per_step=2")),
    *(f"stages.{name}.group_size=2" for name in STAGES[3:]),
    "evaluation.splits.heldout=2",
)
# Contents of their config.json, and the number of parameters that result.
SHAPES: dict[str, tuple[dict[str, int], str]] = {
    "autocoa-7b": (
        {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
        },
        "7,615,616,512",
    ),
    "autocoa-1.5b": (
        {
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
        },
        "1,777,088,000",
    ),
}
SHAPES["autocoa-7b-cluster"] = SHAPES["autocoa-7b"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write questions, a corpus, and the authors' formats of demonstrations and pairs."""
    folder = tmp_path_factory.mktemp("files")
    names = ("tasks.jsonl", "corpus.jsonl", "demonstrations.jsonl", "pairs.json")
    made = {name.partition(".")[0]: folder / name for name in names}
    tasks = {n: Task(n, f"Where was {n} born?", (town,)) for n, town in TOWNS.items()}
    task_records = [{"question": t.question, "golden_answers": t.answers} for t in tasks.values()]
    read = [{"title": n, "text": f"{n} was born in {town}."} for n, town in TOWNS.items()]
    for name, records in (("tasks", task_records), ("corpus", read)):
        made[name].write_text("".join(f"{json.dumps(record)}\n" for record in records))
    search = {n: ToolCall("search", {"query": n}) for n in TOWNS}
    captured = [
        (
            tasks[n],
            [Thought("I search."), search[n], Observation(f"{n}: {town}."), Answer(town)],
        )
        for n, town in TOWNS.items()
    ]
    pairs = [
        ContrastivePair(
            tasks[n], (Thought("Hm."),), (search[n],), (Thought("I know."), Answer("Rome"))
        )
        for n in TOWNS
    ]
    assert not write_demonstrations(captured, made["demonstrations"])
    assert not write_pairs(pairs, made["pairs"])
    return made


def given(files: dict[str, Path], model: Path) -> list[str]:
    return [f"model={model}", *(f"{key}={path}" for key, path in files.items())]


def status(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture(
    scope="module",
    params=["autocoa-7b", pytest.param("autocoa-1.5b", marks=pytest.mark.slow)],
)
def run(
    request: pytest.FixtureRequest, files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Run the recipe, shortened, with a tiny model; its first model is stored next to the run."""
    folder = tmp_path_factory.mktemp(request.param)
    model = write_tiny_r1(folder / "model")
    threads = torch.get_num_threads()
    assert status("run", request.param, *given(files, model), *SHORT, "--out", folder / "run") == 0
    torch.set_num_threads(threads)
    return folder / "run"


def adapted(run: Path) -> bool:
    return json.loads((run / "recipe.json").read_text())["lora"] is not None


# -- the runs -----------------------------------------------------------------------------------


@pytest.mark.long
def test_every_stage_runs_and_is_reported(run: Path) -> None:
    report = json.loads((run / "report.json").read_text())
    assert list(report["evals"]) == ["base", "prompted-react", "prompted-reflexion", *STAGES]
    assert [stage["name"] for stage in report["stages"]] == [*STAGES, "evaluation"]
    for stage in report["stages"][:5]:
        assert stage["metrics"]["tokens"] > 0
    for stage in report["stages"][:3]:
        assert stage["metrics"]["grad_norm"] > 0
    assert (run / "report.html").exists()
    assert report["evals"]["rl2"]["n"] == 2 * 3  # questions, samples


def test_every_prompt_opens_one_think(run: Path) -> None:
    for name in ("sft2", "rl2"):
        for trajectory in read_trajectories(run / "evaluations" / f"{name}.jsonl"):
            prompt = trajectory.segments[0].text
            assert prompt.startswith("<｜begin▁of▁sentence｜><｜User｜>You reason")
            assert prompt.endswith("born?<｜Assistant｜><think>\n")


def test_what_a_stage_leaves(run: Path) -> None:
    base = load_file(run.parent / "model" / "model.safetensors")
    if adapted(run):  # the recipe holds it in bfloat16, as the real checkpoints are
        base = {key: value.bfloat16().float() for key, value in base.items()}
    before = base
    for name in STAGES:
        found = load_file(run / name / "model" / "model.safetensors")
        assert found.keys() == base.keys()
        assert {value.dtype for value in found.values()} == {torch.float32}
        changed = {key for key in base if not torch.equal(before[key], found[key])}
        assert changed or name in STAGES[3:]  # a tiny model earns no reward, so only the KL remains
        assert (run / name / "adapter").exists() == adapted(run)
        if adapted(run):
            assert all("_proj.weight" in key for key in changed)
        assert not list((run / name).glob("step-*"))
        before = found


def test_an_adapter_goes_on_from_that_of_the_stage_before(run: Path) -> None:
    if not adapted(run):
        pytest.skip("all weights are trained")
    for pair in pairwise(STAGES[2:]):  # reinforcement learning takes small steps
        one, other = (
            load_file(run / name / "adapter" / "adapter_model.safetensors") for name in pair
        )
        grown = [key for key in one if "lora_B" in key]  # which are 0 in a new adapter
        moved = sum(float((one[key] - other[key]).norm()) for key in grown)
        assert 0 < moved < 0.1 * sum(float(one[key].norm()) for key in grown)


def test_the_reference_of_reinforcement_learning_is_where_its_stage_began(run: Path) -> None:
    for name in STAGES[3:]:
        row = json.loads((run / name / "metrics.jsonl").read_text())
        assert row["kl_ref"] < 1e-3


class Killed(BaseException):
    """An exception that represents the end of the process."""


def execute(
    recipe: Recipe, out: Path, dies_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Execute a run, or the rest of one, up to its optimiser step number `dies_at`."""
    taken = []
    step = Trainer.step

    def counted(*arguments: Any, **named: Any) -> dict[str, float]:
        taken.append(1)
        if len(taken) == dies_at:
            raise Killed
        return step(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", counted)
        patch.setattr(context, "find_fastest_threads", lambda _: ThreadCounts(1, 1))
        run_recipe(recipe, out, EventBus([write_metrics]))


@pytest.mark.slow
def test_a_run_with_adapters_goes_on_where_it_was_killed(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny_r1(tmp_path / "model")
    longer = [f"stages.{name}.{key}" for name in STAGES[3:] for key in ("steps=2", "epochs=2")]
    unseen = [f"stages.{name}.evaluate=false" for name in STAGES]
    often = [f"stages.{name}.checkpoint_every=1" for name in STAGES]
    mine = [*given(files, model), *SHORT, *longer, *unseen, *often, "evaluation.workflows=[]"]
    recipe = load_recipe("autocoa-1.5b", mine)
    execute(recipe, tmp_path / "whole", None, monkeypatch)
    for dies_at in (3, 5, 3, 2):  # in sft1, at the start of rl1, between its steps, within a step
        with pytest.raises(Killed):
            execute(recipe, tmp_path / "killed", dies_at, monkeypatch)
    execute(recipe, tmp_path / "killed", None, monkeypatch)
    for name in STAGES:
        for file in ("model/model.safetensors", "adapter/adapter_model.safetensors"):
            one, other = (load_file(tmp_path / out / name / file) for out in ("whole", "killed"))
            assert [key for key in one if not torch.equal(one[key], other[key])] == []
        one, other = (
            [
                {key: value for key, value in json.loads(line).items() if "second" not in key}
                for line in (tmp_path / out / name / "metrics.jsonl").read_text().splitlines()
            ]
            for out in ("whole", "killed")
        )
        assert one == other


# -- export -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_exported_model_is_one_of_transformers(run: Path, dtype: str, tmp_path: Path) -> None:
    assert status("export", run, "--out", tmp_path / "out", "--dtype", dtype) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert model.dtype == getattr(torch, dtype)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    messages: Any = [{"role": "user", "content": "Where was Ada Lind born?"}]
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    ours = load_tokenizer(run / "rl2" / "model")
    assert ids[0].tolist() == ours.encode(
        "<｜begin▁of▁sentence｜><｜User｜>Where was Ada Lind born?<｜Assistant｜><think>\n",
        add_special_tokens=False,
    )
    trained = load_model(run / "rl2" / "model", torch.device("cpu")).to(model.dtype)
    options = {"do_sample": False, "max_new_tokens": 12}
    assert model.generate(ids, **options).tolist() == trained.generate(ids, **options).tolist()


def test_an_export_overwrites_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("export", run, "--out", run) == 2
    assert "exists and is not empty" in capsys.readouterr().err


# -- without weights ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_all_that_a_check_misses_is_the_weights(
    name: str, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder has the configuration and the tokenizer of the real model."""
    shape, parameters = SHAPES[name]
    model = tmp_path / "model"
    Qwen2Config(
        **shape,
        num_hidden_layers=28,
        max_position_embeddings=131072,
        tie_word_embeddings=False,
    ).save_pretrained(model)
    r1_tokenizer().save_pretrained(model)
    small = [f"stages.{stage}.batch_size=2" for stage in STAGES[1:3]]
    many = [f"engine.python={fake_python(tmp_path)}"] if name.endswith("cluster") else []
    assert status("check", name, *given(files, model), *small, *many) == 2
    captured = capsys.readouterr()
    assert captured.err == (
        f"fieldcraft: {model} holds no weights: copy its .safetensors files there.\n"
    )
    assert f"ok    model  qwen2, {parameters} parameters" in captured.out
    for check in ("dialect", "gold answers", "budget", *(f"stage {n}" for n in STAGES)):
        assert f"ok    {check}  " in captured.out
    assert ("ok    memory  " in captured.out) == (not many)  # a single process is not a cluster


def test_the_recipes_are_the_same_but_for_what_is_trained() -> None:
    mine = [f"{key}={__file__}" for key in ("model", "tasks", "demonstrations", "pairs")]
    large, small = (load_recipe(name, mine) for name in ("autocoa-7b", "autocoa-1.5b"))
    for name in STAGES:
        one, other = large.stages[name], small.stages[name]
        assert other.optim.lr == pytest.approx(10 * one.optim.lr)
        same = {"lr": 1.0, "optimizer_state": "float32"}
        assert one.optim.model_copy(update=same) == other.optim.model_copy(update=same)
        plain = {"optim": one.optim, "checkpoint_every": 1}
        assert one.model_copy(update=plain) == other.model_copy(update=plain)
    rl = large.stages["rl2"]
    assert isinstance(rl, Rl)
    assert (rl.observations, rl.steps, rl.questions_per_step * rl.group_size) == ("real", 16, 240)
