"""Atomic writes of files and folders, which only their user can access.

Questions, answers and programs of a run may be confidential. So everything created here is private
to the user: folders have the permissions 0700 and files 0600, unless the umask is stricter.
Existing files and folders keep their permissions, so access for others is granted only once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, cast

from fieldcraft.config.names import describe_exception
from fieldcraft.records.paths import require_utf8_name
from fieldcraft.types import UserError

PROBE_BYTES = 4096  # minimum free space on the disk
PRIVATE_FOLDER_MODE, PRIVATE_FILE_MODE = 0o700, 0o600


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents; an existing folder is unchanged."""
    for folder in reversed((path, *path.parents)):
        if not folder.exists():
            folder.mkdir(PRIVATE_FOLDER_MODE, exist_ok=True)


def make_file(path: Path) -> None:
    """Make an empty file for a library that would create it world-readable, such as SQLite."""
    make_folder(path.parent)
    path.touch(PRIVATE_FILE_MODE)


def open_log(path: Path) -> BinaryIO:
    """Open a file, which may be new, to append bytes to it. Each write is a single system call."""
    return cast(BinaryIO, open(path, "ab", buffering=0, opener=_open_private))


def _open_private(name: str, flags: int) -> int:
    return os.open(name, flags, PRIVATE_FILE_MODE)


def append_text(path: Path, text: str) -> None:
    """Append to a journal with a single writer, which may be new, atomically. Lone surrogates are
    written as "?". A last line that a crash has cut short is removed.

    Raises OSError, for example if the disk is full.
    """
    with _open_journal(path) as file:
        _remove_incomplete_line(file)
        with _rollback_on_error([file]):
            _write_fully(file, text)


def append_durably(texts: Mapping[Path, str]) -> None:
    """Append to several journals, to all or to none, and wait until the data is on disk. Other
    writers may do the same concurrently. A last line that a crash has cut short is removed. Raises
    OSError."""
    with ExitStack() as stack:
        files = [stack.enter_context(_open_journal(path)) for path in texts]
        for file in files:
            fcntl.flock(file, fcntl.LOCK_EX)
        for file in files:
            _remove_incomplete_line(file)
        stack.enter_context(_rollback_on_error(files))
        for file, text in zip(files, texts.values(), strict=True):
            _write_fully(file, text)
        for file in files:
            os.fsync(file.fileno())


def _open_journal(path: Path) -> BinaryIO:
    return cast(BinaryIO, open(path, "a+b", buffering=0, opener=_open_private))


def _remove_incomplete_line(file: BinaryIO) -> None:
    """Remove a last line without its end from a journal. No other process may be writing it."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 1))
    if file.read(1) not in (b"", b"\n"):
        file.seek(0)
        os.ftruncate(file.fileno(), file.read().rfind(b"\n") + 1)


@contextmanager
def _rollback_on_error(files: Sequence[BinaryIO]) -> Iterator[None]:
    """Truncate the files to their original sizes if the block fails."""
    sizes = [os.fstat(file.fileno()).st_size for file in files]
    try:
        yield
    except OSError:
        for file, size in zip(files, sizes, strict=True):
            os.ftruncate(file.fileno(), size)
        raise


def _write_fully(file: BinaryIO, text: str) -> None:
    data = text.encode(errors="replace")
    if file.write(data) != len(data):  # the error that writing the rest would raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)


def get_temporary_path(path: Path) -> Path:
    """Return the temporary path of a file or folder while it is written."""
    return path.with_name(f".{path.name}.draft")


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `target` (new) when the block ends. The result is
    complete and on disk, or absent; a block that fails, as on a full disk, leaves no draft."""
    draft = get_temporary_path(target)
    shutil.rmtree(draft, ignore_errors=True)
    try:
        make_folder(draft)
        yield draft
        commit_draft(draft, target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def commit_draft(draft: Path, target: Path) -> None:
    """Rename a complete draft to its final name, after its data is on disk."""
    sync_folder(draft)
    draft.rename(target)
    sync_path(target.parent)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path whose file is renamed to `path` when the block ends. The result is
    complete and on disk, or absent; a block that fails leaves no draft."""
    make_folder(path.parent)
    draft = get_temporary_path(path)
    draft.unlink(missing_ok=True)  # not followed if it is a link made by another user
    draft.touch(PRIVATE_FILE_MODE, exist_ok=False)
    try:
        if path.exists():
            draft.chmod(path.stat().st_mode)
        yield draft
        sync_path(draft)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until all contents of a folder are on disk."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            sync_path(path)


def sync_path(path: Path) -> None:
    """Wait until the bytes of a file, or the entries of a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def raise_write_errors(path: Path) -> Iterator[None]:
    """Convert errors of a library that writes `path` in the block. Raises UserError for the
    library's own exceptions, as on a full disk; errors of the operating system are re-raised."""
    try:
        yield
    except (UserError, OSError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"{path} cannot be written ({describe_exception(error)}): free disk space, and"
            " run the same command again."
        ) from error


def copy_file_mode(folder: Path, reference: Path) -> None:
    """Set the mode of the weights in a folder to that of the file `reference`, which follows the
    umask: the library safetensors creates them private to the user."""
    for file in folder.glob("*.safetensors"):
        shutil.copymode(reference, file)


def require_folder_name(path: Path) -> None:
    """Raise UserError for a path such as ".", which names no folder that can be written beside the
    others and then renamed."""
    if not path.name:
        raise UserError(f"{path} has no name of its own: give the name of a new folder in it.")


def require_writable(path: Path) -> None:
    """Raise UserError if nothing can be written at or below `path`, or if its name is not UTF-8;
    leave nothing behind."""
    require_utf8_name(path)
    path = path.absolute()
    try:
        for part in (path, *path.parents):
            if part.is_symlink() and not part.exists():
                raise UserError(
                    f"nothing can be written at {path}, because {part} is a broken link: choose"
                    " another path."
                )
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
        if not existing.is_dir():
            raise UserError(
                f"nothing can be written at {path}, because {existing} is a file: choose another"
                " path."
            )
        with TemporaryDirectory(dir=existing, prefix=".") as probe:
            target = Path(probe, *path.relative_to(existing).parts)
            if target != Path(probe):
                get_temporary_path(target).mkdir(parents=True)  # the longest name in use
            with Path(probe, "probe").open("wb") as file:
                file.write(bytes(PROBE_BYTES))
                os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"nothing can be written at {path} ({error.strerror}): choose another path."
        ) from error


def write_text(path: Path, pieces: Iterable[str]) -> None:
    """Write a text file atomically. Lone surrogates (bytes that were never text) are written as
    "?"."""
    with (
        atomic_file(path) as draft,
        draft.open("w", encoding="utf-8", errors="replace", newline="\n") as file,
    ):
        file.writelines(pieces)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically. Raises UserError for a non-finite number, which JSON cannot
    represent, so the file could not be read again."""
    write_text(path, [dump_finite_json(path, value, indent=1, ensure_ascii=False)])


def dump_finite_json(path: Path, value: Any, **settings: Any) -> str:
    """Return a value as JSON for the file `path`; `settings` are passed to `json.dumps`. Raises
    UserError for a non-finite number, with the keys that lead to it: it is not valid JSON, and
    programs other than Python do not parse `NaN`."""
    try:
        return json.dumps(value, allow_nan=False, **settings)
    except ValueError as error:
        if (found := find_nonfinite(value)) is None:
            raise
        keys, number = found
        raise UserError(
            f"{path} would contain {keys} = {number}, which is not finite: correct the reward or"
            " the setting that it comes from."
        ) from error


def replace_nonfinite(value: Any) -> Any:
    """Return a value with None, for unknown, in place of each non-finite number."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: replace_nonfinite(item) for key, item in value.items()}
        case list() | tuple():
            return [replace_nonfinite(item) for item in value]
    return value


def find_nonfinite(value: Any, path: str = "") -> tuple[str, float] | None:
    """Return the keys that lead to the first non-finite number, joined by dots, and the number."""
    if isinstance(value, float) and not math.isfinite(value):
        return path.lstrip("."), value
    parts = dict(enumerate(value)) if isinstance(value, list | tuple) else value
    inside = parts.items() if isinstance(parts, dict) else ()
    found = (find_nonfinite(item, f"{path}.{key}") for key, item in inside)
    return next(filter(None, found), None)
