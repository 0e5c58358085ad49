"""Messages about unreadable files: the true cause, and a remedy without data loss."""

import errno
import os
from pathlib import Path

import pytest

from fieldcraft.records import reading
from fieldcraft.records.reading import (
    DamagedFileError,
    advise_renaming,
    describe_access_error,
    read_json,
    require_readable,
)
from fieldcraft.types import UserError


def test_what_is_put_aside_gets_a_free_name(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    assert advise_renaming(file) == f"rename {file} to report.json.damaged"
    (tmp_path / "report.json.damaged").touch()
    assert advise_renaming(file) == f"rename {file} to report.json.2.damaged"


def unreadable(monkeypatch: pytest.MonkeyPatch, file: Path, error: OSError) -> None:
    """Make the file raise an error when it is opened, as for a user without permission."""
    opened = Path.open

    def refuse(path: Path, *args: object, **settings: object) -> object:
        if path == file:
            error.filename = str(path)
            raise error
        return opened(path, *args, **settings)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    denied = isinstance(error, PermissionError)
    monkeypatch.setattr(reading, "is_accessible", lambda part: not (denied and part == file))


@pytest.mark.parametrize("own", [True, False])
def test_a_file_without_permission_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    file = tmp_path / "the model" / "model.safetensors"
    file.parent.mkdir()
    file.write_bytes(b"whole")
    file.chmod(0o600)
    owner = file.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner if own else owner + 54321)
    unreadable(monkeypatch, file, PermissionError(errno.EACCES, "Permission denied"))
    with pytest.raises(UserError) as caught:
        require_readable(file.parent)
    message = str(caught.value)
    assert not isinstance(caught.value, DamagedFileError)
    assert "has the mode 0600" in message
    chmod = f"chmod {'u' if own else 'a'}+r '{file}'"
    assert f"run '{chmod}' and run the same command again." in message
    assert ("you are the user" in message) is not own


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "cannot be read (permission denied)"),
        (errno.ENOMEM, "more memory than is free"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EIO, "cannot be read from the disk (Input/output error)"),
    ],
)
def test_reading_tells_what_hinders_it_in_place_of_the_advice_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    file = tmp_path / "stage.json"
    file.write_text("{}")
    unreadable(monkeypatch, file, OSError(number, os.strerror(number)))
    with pytest.raises(UserError) as caught:
        read_json(file, dict, "rename it")
    assert words in str(caught.value)
    assert "rename" not in str(caught.value)


def test_what_is_missing_or_a_folder_is_no_obstacle(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match="does not exist; restore it"):
        read_json(tmp_path / "none.json", dict, "restore it")
    assert (
        describe_access_error(tmp_path, IsADirectoryError(errno.EISDIR, "Is a directory")) is None
    )
    require_readable(tmp_path / "none")
