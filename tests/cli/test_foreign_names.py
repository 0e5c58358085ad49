"""Names of files and folders that are not UTF-8 are refused at the start of a command."""

import os
from pathlib import Path

import pytest

from cli_parts import lines, sentence, status

LATIN = os.fsdecode(b"caf\xe9")  # the name of a folder in Latin-1


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a folder with a model in a stage of a run, and with an index, in a folder LATIN."""
    monkeypatch.chdir(tmp_path)
    for name in ("run/base/model/config.json", "run/recipe.json", "index/manifest.json"):
        file = Path(LATIN, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    lines(Path("q.jsonl"), [{"question": "Q?", "answer": "A", "text": "B"}])
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["ask", "--model", f"{LATIN}/run", "Q?"],
        ["ask", "--model", f"{LATIN}/run/base", "Q?"],
        ["eval", "--model", f"{LATIN}/run/base/model", "--tasks", "q.jsonl"],
        ["export", f"{LATIN}/run/base", "--out", "model"],
        ["branch", f"{LATIN}/run", "--index", "0"],
        ["compare", f"{LATIN}/run", "run"],
        ["serve", "search", "--index", f"{LATIN}/index"],
        ["run", "smoke", "--out", f"{LATIN}/new/run"],
        ["export", "run", "--out", f"{LATIN}/model"],
        ["index", "q.jsonl", "--out", f"{LATIN}/new"],
        ["world", "atlas", "--out", f"{LATIN}/new"],
    ],
)
def test_a_name_in_another_encoding_is_refused(
    arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    assert status(*arguments) == 2
    assert sentence(capsys) == (
        r"the name of caf\xe9 is not UTF-8: rename it with mv, or choose another folder."
    )
    assert sorted(folder.rglob("*")) == before
