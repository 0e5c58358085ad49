"""A format of files that an installed package adds, and files of no known format."""

import importlib
import json
from collections import Counter
from pathlib import Path

import pytest

from fieldcraft.config.components import ComponentKind
from fieldcraft.config.names import resolve
from fieldcraft.data.file_formats import list_formats, read_any_demonstrations, read_any_pairs
from fieldcraft.data.steps_io import ContrastivePair
from fieldcraft.data.tasks import read_tasks
from fieldcraft.types import Answer, Task, UserError
from source_files import lines

SOURCE = """
from collections import Counter

from fieldcraft.data.file_formats import FileFormat
from fieldcraft.data.records import read_valid_records
from fieldcraft.data.steps_io import ContrastivePair
from fieldcraft.types import Answer, Task


def task_of(record):
    return Task(record["q"], record["q"], (record["a"],))


class Cards(FileFormat):
    def normalise_question(self, record):
        return {"question": record["q"], "answer": record["a"]} if "q" in record else record

    def find_recipe_key(self, record):
        return "demonstrations" if "q" in record else None

    def read_demonstrations(self, path, first, max_left_out):
        if "q" not in first:
            return None
        found = [record for _, record in read_valid_records(path)]
        return [(task_of(record), [Answer(record["a"])]) for record in found], Counter()

    def read_pairs(self, path, first, max_left_out):
        if "worse" not in first:
            return None
        found = [record for _, record in read_valid_records(path)]
        return [
            ContrastivePair(task_of(r), (), (Answer(r["a"]),), (Answer(r["worse"]),)) for r in found
        ], Counter()
"""
CARD = {"q": "Who?", "a": "Ada"}
TASK = Task("Who?", "Who?", ("Ada",))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for files, next to an installed package with a format."""
    about = tmp_path / "site" / "cards_plugin-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: cards-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fieldcraft.formats]\ncards = cards_plugin:Cards\n")
    (tmp_path / "site" / "cards_plugin.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    importlib.invalidate_caches()
    return tmp_path


def test_a_format_of_a_package_is_asked_first(installed: Path) -> None:
    assert type(list_formats()[0]) is resolve(ComponentKind.FORMAT, "cards")
    path = lines(installed / "a.jsonl", CARD)
    [task] = read_tasks(path)
    assert (task.question, task.answers) == ("Who?", ("Ada",))
    assert read_any_demonstrations(path) == ([(TASK, [Answer("Ada")])], Counter())
    with pytest.raises(UserError, match="but a demonstration: give the file as demonstrations="):
        read_any_pairs(path)
    pairs = lines(installed / "b.jsonl", {**CARD, "worse": "Bo"})
    expected = ContrastivePair(TASK, (), (Answer("Ada"),), (Answer("Bo"),))
    assert read_any_pairs(pairs) == ([expected], Counter())


def test_other_files_are_read_as_before(installed: Path) -> None:
    path = lines(installed / "a.jsonl", {"question": "Who?", "answer": "Ada"})
    assert [task.answers for task in read_tasks(path)] == [("Ada",)]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"names": ["Ada"]}, "line 1 holds no demonstration of a known format: write OpenAI's"),
        ({}, "line 1 holds no demonstration of a known format: write OpenAI's"),
        (
            {"question": "Q?", "answer": "A"},
            "line 1 holds no demonstration, but a question: give the file as tasks=FILE.",
        ),
    ],
)
def test_a_file_of_no_format_is_refused(
    tmp_path: Path, record: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read_any_demonstrations(lines(tmp_path / "a.jsonl", record))


def test_a_file_without_records_holds_no_demonstrations(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    assert read_any_demonstrations(tmp_path / "a.jsonl") == ([], Counter())
    (tmp_path / "b.jsonl").write_text(json.dumps([1]) + "\n")
    with pytest.raises(UserError, match="line 1: the line "):
        read_any_demonstrations(tmp_path / "b.jsonl")
