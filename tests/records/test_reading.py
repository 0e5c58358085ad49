"""Files of users and runs: every defect of a file is reported by a sentence that names it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from fieldcraft.data.tasks import read_tasks
from fieldcraft.records import files
from fieldcraft.records.files import (
    atomic_file,
    atomic_folder,
    raise_write_errors,
    require_writable,
)
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.reading import DamagedFileError, raise_read_errors, read_json
from fieldcraft.types import UserError


class Shape(BaseModel):
    seconds: float


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", "is empty"),
        (b'{"seconds": 1', "is not JSON"),
        (b"\xff\x00\x80", "is not text in UTF-8"),
        (b"[1]", "must be a mapping"),
        (b"{}", "seconds: it is missing"),
        (b'{"seconds": "1"}', "seconds: it must be a number, not '1'"),
        (b'{"seconds": NaN}', "NaN is not a finite number"),
        (b'{"seconds": 1e999}', "1e999 is not a finite number"),
        (
            b'{"seconds": 1' + b"0" * 400 + b"}",
            "1" + "0" * 19 + " is not a finite number",
        ),
        (b'{"seconds": 1' + b"0" * 5000 + b"}", "is not a finite number"),
        (b"[" * 100_000, "is nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: bytes, wrong: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError) as caught:
        read_json(path, Shape, "delete it")
    sentence = str(caught.value)
    assert sentence.startswith(f"{path} ")
    assert wrong in sentence
    assert sentence.endswith("; delete it.")


def test_a_path_that_is_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match="is a folder, not a file; delete it"):
        read_json(tmp_path, Any, "delete it")
    with pytest.raises(DamagedFileError, match="none does not exist; delete it"):
        read_json(tmp_path / "none", Any, "delete it")


def test_a_file_as_it_should_be_comes_back_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"seconds": 1, "more": [2.5]}')
    assert read_json(tmp_path / "x.json", Shape, "") == {"seconds": 1, "more": [2.5]}


def test_a_sentence_is_not_wrapped_in_another() -> None:
    with pytest.raises(UserError, match=r"^first\.$"), raise_read_errors("x", "delete it"):
        raise UserError("first.")


HUGE = '{"step": 0, "loss": ' + "9" * 400 + "}\n"


@pytest.mark.parametrize(
    "text", ["[]\n", "{}\n", '{"step": "1"}\n', "{\n", '{"step": NaN}\n', HUGE]
)
def test_metrics_of_another_form_are_refused(tmp_path: Path, text: str) -> None:
    log = MetricsLog(tmp_path / "sft" / "metrics.jsonl")
    log.path.parent.mkdir()
    log.path.write_text(text)
    with pytest.raises(
        UserError,
        match=rf"{log.path} .*rename {log.path.parent} to {log.path.parent.name}.damaged to",
    ):
        log.read_rows()


@pytest.mark.parametrize("line_break", ["", "\n"])
def test_an_object_alone_is_one_question(tmp_path: Path, line_break: str) -> None:
    text = f'{{{line_break} "question": "Who?",{line_break} "answer": "I"{line_break}}}'
    (tmp_path / "x.json").write_text(text)
    assert [task.answers for task in read_tasks(tmp_path / "x.json")] == [("I",)]


UNCOUNTED = [
    *('{"hops": "two"}', '{"known": 3}', '{"split": {"a": 1}}'),
    *(f'{{"closed_book": {rate}}}' for rate in ("1.01", "-0.25", "75", "true", '"0.5"')),
]


@pytest.mark.parametrize("metadata", UNCOUNTED)
def test_metadata_that_cannot_be_counted_is_refused(tmp_path: Path, metadata: str) -> None:
    line = f'{{"question": "Who?", "answer": "I", "metadata": {metadata}}}\n'
    (tmp_path / "x.jsonl").write_text(line)
    with pytest.raises(UserError, match=r"line 1: the metadata .* must be .*correct or rename it"):
        read_tasks(tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    ("metadata", "known"),
    [
        ({}, None),
        ({"closed_book": 1}, True),
        ({"closed_book": 0.75}, True),  # three of four samples
        ({"closed_book": 0.5}, False),
        ({"known": None, "closed_book": 0.0}, False),
        ({"known": True, "closed_book": 0.0}, True),  # the author of the question takes precedence
        ({"known": False, "closed_book": 1.0}, False),
    ],
)
def test_what_is_answered_without_tools_is_known(
    tmp_path: Path, metadata: dict[str, object], known: bool | None
) -> None:
    line = {"question": "Who?", "answer": "I", "metadata": metadata}
    (tmp_path / "x.jsonl").write_text(f"{json.dumps(line)}\n")
    (task,) = read_tasks(tmp_path / "x.jsonl")
    assert task.is_known is known


# -- writing -----------------------------------------------------------------------------------


def test_a_place_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "below", tmp_path / ("n" * 300), tmp_path / ("n" * 250)):
        with pytest.raises(UserError, match=r"nothing can be written at .*choose another path"):
            require_writable(path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_place_where_something_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    require_writable(tmp_path)
    require_writable(tmp_path / "deep" / "er")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_found_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        require_writable(tmp_path / "run")


def test_a_library_that_cannot_write_is_a_sentence(tmp_path: Path) -> None:
    broken = pytest.raises(UserError, match=r"cannot be written .*unexpected pos.*free disk space")
    with broken, raise_write_errors(tmp_path / "model"):
        raise RuntimeError("unexpected pos 64")
    with pytest.raises(OSError, match="full"), raise_write_errors(tmp_path / "model"):
        raise OSError(28, "full")


def test_what_has_its_name_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content is synced before the name: otherwise a power failure may leave an empty file of that
    name."""
    done: list[str] = []
    monkeypatch.setattr(
        files.os, "fsync", lambda fd: done.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
    )
    with atomic_file(tmp_path / "x.json") as draft:
        draft.write_text("{}")
    assert done == [".x.json.draft", tmp_path.name]
    done.clear()
    with atomic_folder(tmp_path / "model") as folder:
        (folder / "weights").write_text("1")
    assert sorted(done[:2]) == [".model.draft", "weights"]
    assert done[2:] == [tmp_path.name]
