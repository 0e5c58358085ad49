"""Small models in their published forms: check, a step of each kind, export, serve.

Every model has the configuration class, the layout of the tokenizer, a chat template and the end
tokens of the real one. The quick tests have tiny sizes. The slow tests have the true sizes, except
for the depth of Llama-3.2-1B: weights, gradients and moments in float32 would take 20 GB, so it has
4 of its 16 layers.
"""

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from fieldcraft.config.recipe import Recipe
from fieldcraft.dialects.base import get_bos_ids
from fieldcraft.engine.resources import RunResources
from fieldcraft.extensions.serving.app import create_app
from fieldcraft.extensions.serving.server import open_service
from fieldcraft.extensions.serving.service import ServiceLimits
from fieldcraft.recipes.files import apply_override
from fieldcraft.recipes.loading import load_recipe, parse_recipe
from fieldcraft.records.events import EventBus
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.runs.agent import find_agent
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.dialects import load_dialect
from fieldcraft.runs.export import export
from fieldcraft.runs.memory_advice import make_memory_advice
from fieldcraft.runs.memory_estimate import ModelSizes, estimate_run_memory
from fieldcraft.runs.run import run_recipe
from fieldcraft.tools.serving import serve_in_thread
from serving_parts import client
from small_models import SHAPES, Shape, config_of, tokenizer_of, write_small_model, write_tiny_model

EVERY = pytest.mark.parametrize("name", SHAPES)
DEPTH = {"Llama-3.2-1B": {"num_hidden_layers": 4}}
GIGABYTES = 24


def write(file: Path, records: list[dict[str, Any]]) -> str:
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    return str(file)


def recipe_of(model: Path, folder: Path, **keys: Any) -> dict[str, Any]:
    """Return a recipe on four questions, their passages and demonstrations that search: a step of
    SFT, one of RL."""
    names = ("Ada", "Bo", "Cy", "Di")
    task_records = [{"question": f"Where was {n} born?", "answer": f"{n}port"} for n in names]
    demonstrations = [
        record
        | {
            "gen_text_store": f"I look. <|begin_of_query|> {n} <|end_of_query|>\n\n"
            f'<|begin_of_documents|>\n(1)"Title: {n} Text: {n}port."\n<|end_of_documents|>\n\n'
            f"So it is {n}port.</think>\n\n<answer>{n}port</answer>"
        }
        for n, record in zip(names, task_records, strict=True)
    ]
    optim = {"lr": 1e-3, "micro_batch_tokens": 1024, "activation_checkpointing": True}
    sft = {"type": "sft", "dataset": "demonstrations", "steps": 1, "batch_size": 1, "optim": optim}
    rl = {
        "type": "rl",
        "start_from": "sft",
        "steps": 1,
        "questions_per_step": 1,
        "group_size": 2,
        "optim": optim,
    }
    return {
        "name": "small",
        "model": str(model),
        "tasks": write(folder / "tasks.jsonl", task_records),
        "corpus": write(folder / "corpus.jsonl", [{"text": f"{n}: {n}port"} for n in names]),
        "demonstrations": write(folder / "shown.jsonl", demonstrations),
        "budget": {"max_turn_tokens": 12, "max_context_tokens": 1500, "max_calls": 1},
        "evaluation": {"splits": {"heldout": 1}, "workflows": []},
        "max_num_seqs": 4,
        "stages": {"sft": sft, "rl": {**rl, "rewards": {"em": 1.0, "format": 0.1}}},
        **keys,
    }


def goes_all_the_way(model: Path, folder: Path, dialect: str) -> None:
    recipe, out = parse_recipe(recipe_of(model, folder)), folder / "run"
    assert check_recipe(recipe, folder, lambda *_: None) == []
    run_recipe(recipe, out, EventBus([]))
    agent = find_agent(out)
    assert agent.dialect.name == dialect
    loaded_dialect = agent.dialect
    for trajectory in read_trajectories(out / "evaluations" / "rl.jsonl", ""):
        first = trajectory.segments[0].ids
        begin = get_bos_ids(loaded_dialect.tokenizer)
        assert tuple(first[: len(begin)]) == begin
        assert not begin or first.count(begin[0]) == 1
    export(out, folder / "exported", "float32")
    loaded = AutoModelForCausalLM.from_pretrained(folder / "exported")
    assert loaded.config.tie_word_embeddings
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    assert set(loaded.generation_config.eos_token_id) == set(loaded_dialect.turn_end.ids)
    serves(folder / "exported")


def serves(folder: Path) -> None:
    agent = find_agent(folder)
    service = asyncio.run(open_service(agent, "small", ServiceLimits(), RunResources(folder)))
    with serve_in_thread(create_app(service)) as url:
        messages = [{"role": "user", "content": "Where was Ada born?"}]
        done = client(url).chat.completions.create(model="small", messages=messages)
    assert done.choices[0].message.role == "assistant"
    assert done.usage.total_tokens > done.usage.completion_tokens > 0


@pytest.mark.long
@EVERY
def test_a_tiny_one_goes_all_the_way(name: str, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", SHAPES[name])
    goes_all_the_way(model, tmp_path, SHAPES[name].dialect)


@pytest.mark.slow
@EVERY
def test_one_of_the_true_shape_goes_all_the_way(name: str, tmp_path: Path) -> None:
    model = write_small_model(tmp_path / "model", SHAPES[name], **DEPTH.get(name, {}))
    goes_all_the_way(model, tmp_path, SHAPES[name].dialect)


@EVERY
@pytest.mark.parametrize("dialect", [None, "hermes", "search-r1", "autocoa"])
def test_every_dialect_reads_what_it_wrote(name: str, dialect: str | None, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", SHAPES[name])
    loaded_dialect = load_dialect(Recipe(name="r", model=model, dialect=dialect, stages={}), model)
    assert set(loaded_dialect.turn_end.texts) == set(SHAPES[name].stops)
    assert loaded_dialect.turn_end.text == SHAPES[name].stops[0]
    ids = loaded_dialect.encode_prompt("Où est  né\tAda?\n\n(1931)", [])
    assert "Où est  né\tAda?\n\n(1931)" in loaded_dialect.tokenizer.decode(ids)
    result = "a  b\n\n ünd <end_of_turn> <|eot_id|>"
    block = loaded_dialect.encode_observation(result)
    assert loaded_dialect.tokenizer.decode(block) == loaded_dialect.render_observation(result)


def test_qwen3_that_does_not_think_is_spoken_to_as_one_that_writes_its_own(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", SHAPES["Qwen3-0.6B"])
    recipe = Recipe(
        name="r", model=model, stages={}, chat_template_kwargs={"enable_thinking": False}
    )
    text = load_dialect(recipe, model).tokenizer.decode(
        load_dialect(recipe, model).encode_prompt("?", [])
    )
    assert "<think>\n\n</think>" not in text


# -- memory ---------------------------------------------------------------------------------------


def sized(shape: Shape, recipe: Recipe) -> ModelSizes:
    config = config_of(shape)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    parameters = sum(p.numel() for p in model.parameters())
    assert round(parameters / 1e6) == shape.parameters
    return ModelSizes(recipe, config, parameters, parameters)


def recipes(model: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Return a shipped recipe, and the one that the README's program trains."""
    own = recipe_of(model, folder)
    files = {key: own[key] for key in ("model", "tasks", "corpus", "demonstrations")}
    shipped = load_recipe("hotpotqa", [f"{key}={value}" for key, value in files.items()])
    rl = {
        "type": "rl",
        "steps": 200,
        "questions_per_step": 32,
        "group_size": 8,
        "rewards": {"em": 1.0},
    }
    program = own | {"stages": {"rl": {**rl, "optim": {"lr": 1e-6}}}}
    for key in ("budget", "max_num_seqs", "evaluation"):
        del program[key]
    return {"hotpotqa": shipped.model_dump(mode="json"), "program": program}


@EVERY
@pytest.mark.parametrize("which", ["hotpotqa", "program"])
def test_a_machine_of_24_gb_fits_it_or_is_told_what_fits(
    name: str, which: str, tmp_path: Path
) -> None:
    there = GIGABYTES * 10**9
    data = recipes(write_tiny_model(tmp_path / "model", SHAPES[name]), tmp_path)[which]
    fits = largest(data, SHAPES[name], []) <= there
    if name == "Qwen2.5-0.5B":
        assert fits
    if not fits:
        advice = make_memory_advice(sized(SHAPES[name], parse_recipe(data)), there)
        listed = advice.removeprefix("set ").removesuffix(", with which it fits")
        settings = listed.replace(" and ", ", ").split(", ")
        assert largest(data, SHAPES[name], settings) <= there
        for setting in settings:  # and none of them can be left out
            others = [other for other in settings if other != setting]
            assert largest(data, SHAPES[name], others) > there


def largest(data: dict[str, Any], shape: Shape, settings: list[str]) -> int:
    """Return the bytes of the largest memory estimate of a run with other settings."""
    changed = copy.deepcopy(data)
    for setting in settings:
        apply_override(changed, setting)
    return max(estimate_run_memory(sized(shape, parse_recipe(changed))).values())


def test_the_layouts_of_tokenizers_are_those_of_the_models() -> None:
    gemma, llama = (tokenizer_of(SHAPES[name]) for name in ("Gemma-3-270M", "Llama-3.2-1B"))
    assert gemma.decode(gemma.encode("ü  b", add_special_tokens=False)) == "ü  b"
    assert gemma.encode("a")[0] == gemma.bos_token_id
    assert llama.encode("a")[0] == llama.bos_token_id
