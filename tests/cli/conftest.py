"""Finished run, checkpoint and files for the tests of the command line."""

from pathlib import Path

import pytest

from checkpoints import write_tiny_checkpoint
from cli_parts import TINY, demonstration, lines, status


@pytest.fixture(scope="session")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a finished run of the recipe smoke, as small as possible."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    assert status("run", "smoke", *TINY, "--out", out) == 0
    return out


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"), "qwen3")


@pytest.fixture
def files(tmp_path: Path, checkpoint: Path) -> dict[str, Path]:
    """Provide the files that the recipe hotpotqa requires."""
    tasks = [{"question": f"Who made film {i}?", "answer": f"Director {i}"} for i in range(4)]
    corpus = [{"title": f"Film {i}", "text": f"Director {i} made it."} for i in range(4)]
    return {
        "model": checkpoint,
        "tasks": lines(tmp_path / "tasks.jsonl", tasks),
        "corpus": lines(tmp_path / "corpus.jsonl", corpus),
        "demonstrations": lines(tmp_path / "demonstrations.jsonl", [demonstration("Ada")]),
    }
