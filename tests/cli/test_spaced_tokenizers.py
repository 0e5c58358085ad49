"""Every command refuses a tokenizer that inserts a space before each part of a prompt."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cli_parts import given, lines, sentence, status

REFUSED = (
    "The tokenizer writes a space before each separately encoded text, like SentencePiece,"
    " but prompts are encoded in parts, so the dialect '{dialect}' cannot be used with {model}:"
    " choose a model whose tokenizer preserves every text, like byte-level ones."
)


def put_spaces(model: Path) -> None:
    """Give a model a tokenizer like Llama 2's: a space starts each text, and the rest is bytes."""
    before = AutoTokenizer.from_pretrained(model)
    pieces = ["<unk>", "▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = [chr(code) for code in range(33, 127)]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, *letters])}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always"), decoders.Fuse()]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<unk>", chat_template=before.chat_template
    )
    tokenizer.add_special_tokens({"eos_token": before.eos_token})
    (model / "tokenizer.json").unlink()
    tokenizer.save_pretrained(model)


@pytest.fixture
def model(files: dict[str, Path], tmp_path: Path) -> Path:
    files["model"] = Path(shutil.copytree(files["model"], tmp_path / "model"))
    put_spaces(files["model"])
    return files["model"]


@pytest.mark.parametrize("command", ["run", "check", "ask", "eval", "serve"])
def test_a_model_that_was_not_trained_here(
    command: str,
    model: Path,
    files: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    questions = lines(tmp_path / "questions.jsonl", [{"question": "Who?", "answer": "Ada"}])
    recipe = ["hotpotqa", *given(files), "dialect=hermes", "stages.sft.batch_size=1"]
    agent = ["--model", model, "--dialect", "hermes"]
    arguments: dict[str, list[object]] = {
        "run": [*recipe, "--out", tmp_path / "out"],
        "check": recipe,
        "ask": ["Who?", *agent],
        "eval": [*agent, "--tasks", questions],
        "serve": ["agent", *agent],
    }
    assert status(command, *arguments[command]) == 2
    assert sentence(capsys) == REFUSED.format(dialect="hermes", model=model)
    assert not (tmp_path / "out").exists()


def of_run(done: Path, folder: Path) -> Path:
    return Path(shutil.copytree(done, folder)) / "rl2" / "model"


def of_export(done: Path, folder: Path) -> Path:
    assert status("export", done, "--out", folder) == 0
    return folder


@pytest.mark.parametrize("make", [of_run, of_export])
@pytest.mark.parametrize("command", ["ask", "eval", "serve", "export"])
def test_an_agent_that_was_trained_here(
    command: str,
    make: Callable[[Path, Path], Path],
    done: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = make(done, tmp_path / "agent")
    put_spaces(model)
    capsys.readouterr()
    arguments: dict[str, list[object]] = {
        "ask": ["Who?", "--model", model],
        "eval": ["--model", model, "--tasks", done / "world" / "evaluation.jsonl"],
        "serve": ["agent", "--model", model],
        "export": [model, "--out", tmp_path / "out"],
    }
    assert status(command, *arguments[command]) == 2
    assert sentence(capsys) == REFUSED.format(dialect="autocoa", model=model)
    assert not (tmp_path / "out").exists()


def test_a_bare_model_is_not_exported_either(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("export", model, "--out", tmp_path / "out") == 2
    refused = REFUSED.replace("the dialect '{dialect}' cannot", "no dialect can")
    assert sentence(capsys) == refused.format(model=model)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["check", "run", "ask", "eval", "serve", "export"])
def test_a_tokenizer_with_tokens_that_the_model_does_not_know(
    command: str,
    files: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = files["model"] = Path(shutil.copytree(files["model"], tmp_path / "model"))
    tokenizer = AutoTokenizer.from_pretrained(model)
    known = json.loads((model / "config.json").read_text())["vocab_size"]
    tokenizer.add_tokens([f"<new {number}>" for number in range(known)])
    tokenizer.save_pretrained(model)
    questions = lines(tmp_path / "questions.jsonl", [{"question": "Who?", "answer": "Ada"}])
    recipe = ["hotpotqa", *given(files), "stages.sft.batch_size=1"]
    arguments: dict[str, list[object]] = {
        "run": [*recipe, "--out", tmp_path / "out"],
        "check": recipe,
        "ask": ["Who?", "--model", model],
        "eval": ["--model", model, "--tasks", questions],
        "serve": ["agent", "--model", model],
        "export": [model, "--out", tmp_path / "out"],
    }
    assert status(command, *arguments[command]) == 2
    message = f"tokens and the model only {known}: use the tokenizer that belongs to the model."
    assert sentence(capsys).endswith(message)
    assert not (tmp_path / "out").exists()


ENVIRONMENTS = """
async def answer(task, base_url): ...

class Game:
    def reset(self): return ""
    def step(self, action): return "", 0.0, True
"""


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(
    "environment",
    [
        {"name": "blackbox", "agent": "spaced_environments:answer"},
        {"name": "text", "env": "spaced_environments:Game"},
    ],
)
def test_an_environment_of_others(
    command: str,
    environment: dict[str, str],
    model: Path,
    files: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages of an external environment are also built from parts."""
    (tmp_path / "spaced_environments.py").write_text(ENVIRONMENTS)
    monkeypatch.syspath_prepend(tmp_path)
    stage = {"type": "rl", "steps": 1, "rewards": {"environment": 1.0}, "optim": {"lr": 1e-6}}
    recipe = {
        "name": "played",
        "model": str(model),
        "tasks": str(files["tasks"]),
        "environment": environment,
        "stages": {"rl": stage},
        "evaluation": {"splits": {"heldout": 1}},
    }
    (tmp_path / "played.yaml").write_text(json.dumps(recipe))
    more = ["--out", tmp_path / "out"] if command == "run" else []
    assert status(command, tmp_path / "played.yaml", *more) == 2
    assert sentence(capsys).startswith(
        "The tokenizer writes a space before each separately encoded text"
    )
