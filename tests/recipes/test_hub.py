"""Models that are named as on the hub, and weights in forms of other programs."""

import json
import shutil
from pathlib import Path

import pytest

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from cli_parts import sentence, status
from fieldcraft.recipes.hub import cached_model

NAME = "HuggingFaceTB/SmolLM2-135M"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


@pytest.fixture
def cached(cache: Path) -> Path:
    """A model in the cache, as `hf download` lays it there."""
    folder = cache / "models--HuggingFaceTB--SmolLM2-135M"
    snapshot = folder / "snapshots" / "abc"
    write_tiny_checkpoint(snapshot, "qwen2", tokenizer=tiny_tokenizer())
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    return snapshot


def test_a_name_that_is_not_cached_says_how_to_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = f"run 'hf download {NAME} --local-dir SmolLM2-135M' and give SmolLM2-135M."
    for command in (["ask", "Who?", "--model", NAME], ["check", "autocoa-1.5b", f"model={NAME}"]):
        given = ["tasks=a", "corpus=a", "demonstrations=a", "pairs=a"] if "check" in command else []
        assert status(*command, *given) == 2
        assert sentence(capsys).endswith(wanted)


def test_a_name_is_found_in_the_cache(cached: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cached_model(Path(NAME)) == cached
    assert status("ask", "Who?", "--model", NAME, "--dialect", "hermes") == 0
    assert "Who?" in capsys.readouterr().out
    shutil.move(cached, NAME)  # a folder of this name goes before
    assert cached_model(Path(NAME)) == Path(NAME)


def test_weights_for_llama_cpp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "m.gguf").touch()
    for model in ("a", "a/m.gguf"):
        assert status("ask", "Who?", "--model", model) == 2
        told = sentence(capsys)
        assert told.startswith(f"{model} holds weights for llama.cpp (GGUF)")
        assert "gguf_file=FILE" in told


def test_an_adapter_of_another_program(
    tmp_path: Path, cached: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for base, get in ((NAME, ""), ("Org/Other", "run 'hf download Org/Other', "), (None, "")):
        (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        for command in (["ask", "Who?", "--model"], ["export", "--out", "copy"]):
            assert status(*command, "adapter") == 2
            told = sentence(capsys)
            assert told.startswith(f"adapter is an adapter on {base or 'its base model'}, made by")
            assert f"program: {get}merge the two with PEFT" in told
