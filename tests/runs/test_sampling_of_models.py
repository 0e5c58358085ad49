import json
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints import write_tiny_checkpoint
from fieldcraft.config.sampling import SamplingConfig
from fieldcraft.records.events import Event, ignore_event
from fieldcraft.runs.agent import find_agent
from fieldcraft.runs.sampling import (
    Decoding,
    choose_decoding,
    make_sampling_config,
    resolve_decoding,
)
from fieldcraft.sampling import Truncation
from fieldcraft.train.model import load_model, load_tokenizer
from fieldcraft.train.saving import save_model
from fieldcraft.types import Task, UserError

QWEN = {
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
    "repetition_penalty": 1.05,
    "eos_token_id": 2,
}


def recommending(folder: Path, keys: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps(keys))
    return folder


def resolved(folder: Path, **keys: Any) -> tuple[Decoding, str]:
    events: list[Event] = []
    found = resolve_decoding(SamplingConfig(sampling="model", **keys), folder, events.append)
    [message] = events
    return found, message.text  # type: ignore[union-attr]


def test_what_the_folder_recommends_is_taken_and_said(tmp_path: Path) -> None:
    found, message = resolved(recommending(tmp_path, QWEN))
    assert found == Decoding(0.7, Truncation(top_k=20, top_p=0.8))
    file = tmp_path / "generation_config.json"
    assert message == (
        f"sampling: temperature=0.7, top_k=20, top_p=0.8 of {file}; repetition_penalty=1.05"
        " recommended there, but unknown here"
    )


def test_keys_of_the_recipe_win(tmp_path: Path) -> None:
    found, message = resolved(recommending(tmp_path, QWEN), temperature=1.0, top_k=0)
    assert found == Decoding(1.0, Truncation(top_p=0.8))
    assert "top_p=0.8 of" in message
    assert "; temperature=1, top_k=0 of the recipe;" in message


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"do_sample": False, "temperature": 0.7, "top_k": 5}, Decoding(0.0)),
        ({"do_sample": True}, Decoding(1.0)),
        ({"do_sample": True, "top_k": -1, "min_p": 0.05}, Decoding(1.0, Truncation(min_p=0.05))),
        ({"temperature": 0.6}, Decoding(0.6)),
    ],
)
def test_files_as_makers_write_them(
    tmp_path: Path, keys: dict[str, Any], expected: Decoding
) -> None:
    assert resolved(recommending(tmp_path, keys))[0] == expected


@pytest.mark.parametrize(
    ("keys", "own", "sentence"),
    [
        ({"eos_token_id": 2}, {}, "contains no recommended sampling settings"),
        ({"temperature": -1}, {}, "generation_config.json has unexpected contents"),
        ({"do_sample": False}, {"top_p": 0.5}, "top_p would have no effect on greedy sampling"),
    ],
)
def test_what_cannot_be_taken_is_refused(
    tmp_path: Path, keys: dict[str, Any], own: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        resolved(recommending(tmp_path, keys), **own)


def test_a_folder_without_the_file_and_greedy_samples_are_refused(tmp_path: Path) -> None:
    settings = SamplingConfig(sampling="model")
    with pytest.raises(UserError, match="contains no recommended sampling settings"):
        resolve_decoding(settings, tmp_path, print)
    recommending(tmp_path, {"do_sample": False})
    with pytest.raises(UserError, match="greedy samples of a question are identical"):
        resolve_decoding(settings, tmp_path, print, needs_variety=True)
    with pytest.raises(UserError, match="top_k would have no effect"):
        make_sampling_config(top_k=3)
    with pytest.raises(UserError, match="sampling: it must be 'recipe' or 'model'"):
        make_sampling_config(sampling="mine")


def test_a_trained_model_keeps_what_its_base_recommended(tmp_path: Path) -> None:
    base = write_tiny_checkpoint(tmp_path / "base", "qwen2")
    recommending(base, QWEN)
    model = load_model(base, torch.device("cpu"))
    save_model(tmp_path / "trained", model, load_tokenizer(base))
    assert resolved(tmp_path / "trained")[0] == resolved(base)[0]


def test_an_agent_samples_as_it_is_told(tmp_path: Path) -> None:
    model = recommending(write_tiny_checkpoint(tmp_path / "model", "qwen2"), QWEN)
    agent = find_agent(model).with_settings(
        budget={"max_turn_tokens": 8, "max_context_tokens": 512}
    )

    def generate(**keys: Any) -> list[int]:
        return agent.ask("Who?", **keys).segments[-1].ids

    greedy = generate()
    assert generate(temperature=1.0, top_k=1) == greedy
    sampled = generate(temperature=1.0, seed=1)
    assert sampled not in (greedy, generate(temperature=1.0, seed=2))
    assert generate(temperature=1.0, seed=1) == sampled
    assert generate(sampling="model", seed=1) == generate(
        temperature=0.7, top_p=0.8, top_k=20, seed=1
    )
    chosen = agent.with_sampling(temperature=1.0, top_k=1, samples={"default": 1, "aime*": 3})
    tasks = [Task("a", "Who?", ("x",), {"data_source": "AIME24"}), Task("b", "Why?", ("y",))]
    assert chosen.evaluate(tasks)["n"] == 2
    assert chosen.evaluate(tasks[:1])["sampled"]["samples"] == 3
    assert chosen.with_sampling(temperature=0, samples=1).recipe.evaluation.explicit_keys == {
        "temperature": 0
    }


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, Decoding(0.0)),
        ({"temperature": 0.3}, Decoding(0.3)),
        ({"sampling": "recipe"}, Decoding(0.6, Truncation(top_p=0.9))),
        ({"sampling": "recipe", "top_p": 0.5}, Decoding(0.6, Truncation(top_p=0.5))),
        ({"sampling": "recipe", "temperature": 0}, Decoding(0.0)),
        ({"sampling": "model"}, Decoding(0.7, Truncation(top_k=20, top_p=0.8))),
    ],
)
def test_keys_from_outside_a_recipe(
    tmp_path: Path, keys: dict[str, Any], expected: Decoding
) -> None:
    folder = recommending(tmp_path / "model", QWEN)
    run_settings = SamplingConfig(temperature=0.6, top_p=0.9)
    assert choose_decoding(run_settings, folder, ignore_event, **keys) == expected
    like_run = choose_decoding(
        SamplingConfig(sampling="model"), folder, ignore_event, sampling="recipe"
    )
    assert like_run == Decoding(0.7, Truncation(top_k=20, top_p=0.8))
