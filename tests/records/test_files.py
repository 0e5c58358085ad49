"""Files appear only when complete, and are readable by their owner alone."""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from chat_server import answering, completion
from fieldcraft.records.files import (
    append_durably,
    append_text,
    atomic_file,
    atomic_folder,
    make_folder,
    require_writable,
    write_text,
)
from fieldcraft.tools.chat_client import ChatClient
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import UserError
from small_disk import small_disk
from tiny_runs import run_tiny


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_everything_of_a_run_is_for_its_user(tmp_path: Path) -> None:
    out = run_tiny(tmp_path)
    assert mode(out) == 0o700
    own = [path for path in out.rglob("*") if path.suffix in (".json", ".jsonl", ".html")]
    weights = [path for path in own if "model" in path.parts[len(out.parts) :]]
    assert {mode(path) for path in own if path not in weights} == {0o600}
    assert {mode(path) for path in out.rglob("*") if path.is_dir() and path != out} <= {
        0o700,
        0o755,  # of libraries, inside folders that no other user can enter
    }


def test_new_folders_and_files_are_for_their_user(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "file", ["text"])
    append_text(tmp_path / "a" / "journal", "one\n")
    append_text(tmp_path / "a" / "journal", "\ud800two\n")
    assert (tmp_path / "a" / "journal").read_bytes() == b"one\n?two\n"
    with atomic_folder(tmp_path / "c" / "folder"):
        pass
    with atomic_file(tmp_path / "d") as draft:
        assert mode(draft) == 0o600
        draft.write_bytes(b"of a library")
    assert mode(tmp_path / "d") == mode(tmp_path / "a" / "journal") == 0o600
    assert mode(tmp_path / "a" / "b" / "file") == 0o600
    for name in ("a", "a/b", "c", "c/folder"):
        assert mode(tmp_path / name) == 0o700


def test_what_is_there_keeps_its_permissions(tmp_path: Path) -> None:
    folder, file = tmp_path / "shared", tmp_path / "shared" / "page.html"
    folder.mkdir(0o755)
    write_text(file, ["one"])
    file.chmod(0o644)
    write_text(file, ["two"])
    make_folder(folder)
    assert (file.read_text(), mode(file), mode(folder)) == ("two", 0o644, 0o755)


def test_databases_are_for_their_user(tmp_path: Path) -> None:
    with serve_in_thread(answering(completion())[0]) as url:
        client = ChatClient(f"{url}/v1", "m", cache=tmp_path / "judge.sqlite")
        assert [*tmp_path.iterdir()] == []  # until there is a reply
        asyncio.run(client.chat([{"role": "user", "content": "hi"}], max_tokens=1))
    assert (tmp_path / "judge.sqlite").exists()
    for path in tmp_path.glob("*.sqlite*"):
        assert mode(path) == 0o600


@pytest.mark.parametrize("error", [OSError("full"), UserError("wrong"), KeyboardInterrupt()])
def test_a_failed_write_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def write_file() -> None:
        with atomic_file(tmp_path / "file") as draft:
            draft.write_text("half")
            raise error

    def write_folder() -> None:
        with atomic_folder(tmp_path / "folder") as draft:
            (draft / "part").write_text("half")
            raise error

    (tmp_path / "file").write_text("before")
    for write in (write_file, write_folder):
        with pytest.raises(type(error)):
            write()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "before"


def test_a_draft_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".page.draft").symlink_to(tmp_path / "precious")
    write_text(tmp_path / "page", ["text"])
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "page").read_text() == "text"


@pytest.mark.parametrize("target", ["nowhere", "link"])
def test_nothing_is_written_through_a_broken_link(tmp_path: Path, target: str) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / target)
    for path in (link, link / "run"):
        with pytest.raises(UserError) as refused:
            require_writable(path)
        assert str(refused.value) == (
            f"nothing can be written at {path}, because {link} is a broken link: choose another"
            " path."
        )
    assert [*tmp_path.iterdir()] == [link]


def test_a_journal_gets_a_line_whole_or_not_at_all(tmp_path: Path) -> None:
    """A full disk accepts only the first bytes of a line."""
    journal = tmp_path / "journal"
    append_text(journal, "one\n")
    with small_disk(8), pytest.raises(OSError, match="No space left"):
        append_text(journal, "two three\n")
    assert journal.read_bytes() == b"one\n"
    append_text(journal, "two three\n")
    assert journal.read_bytes() == b"one\ntwo three\n"


@pytest.mark.parametrize(("before", "kept"), [(b"", b""), (b"on", b""), (b"one\ntw", b"one\n")])
def test_a_writer_removes_the_line_that_a_crash_cut_short(
    tmp_path: Path, before: bytes, kept: bytes
) -> None:
    journals = [tmp_path / "alone", tmp_path / "shared"]
    for journal in journals:
        journal.write_bytes(before)
    append_text(journals[0], "three\n")
    append_durably({journals[1]: "three\n"})
    assert [journal.read_bytes() for journal in journals] == [kept + b"three\n"] * 2


def test_journals_get_their_lines_together_or_not_at_all(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    append_durably({first: "a\n", second: "b\n"})
    with small_disk(8), pytest.raises(OSError, match="No space left"):
        append_durably({first: "c\n", second: "longer than it\n"})
    assert (first.read_bytes(), second.read_bytes()) == (b"a\n", b"b\n")
    append_durably({first: "c\n", second: "d\n"})
    assert (first.read_bytes(), second.read_bytes()) == (b"a\nc\n", b"b\nd\n")
