"""Writes: files and folders appear whole or not at all, and are for their user alone.

Questions, answers and programs of a run may be anybody's. So whatever is made here can be read by
nobody else: folders have the permissions 0700 and files 0600, unless the umask is stricter. What is
there already keeps its own, so that who opens a file to others does it once.
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
from fieldcraft.types import UserError

PROBE_BYTES = 4096  # bytes that must fit on the disk
PRIVATE_FOLDER_MODE, PRIVATE_FILE_MODE = 0o700, 0o600


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing; one that is there stays as it is."""
    for folder in reversed((path, *path.parents)):
        if not folder.exists():
            folder.mkdir(PRIVATE_FOLDER_MODE, exist_ok=True)


def make_file(path: Path) -> None:
    """Make an empty file for a library that would create it readable by others, such as SQLite."""
    make_folder(path.parent)
    path.touch(PRIVATE_FILE_MODE)


def open_log(path: Path) -> BinaryIO:
    """Open a file, which may be new, to append bytes to it. Each write is one, whole."""
    return cast(BinaryIO, open(path, "ab", buffering=0, opener=_open_private))


def _open_private(name: str, flags: int) -> int:
    return os.open(name, flags, PRIVATE_FILE_MODE)


def append_text(path: Path, text: str) -> None:
    """Append to a journal of one writer, which may be new, whole or not at all. Lone surrogates
    become "?". Raises OSError, as on a full disk."""
    with open_log(path) as file, _rollback_on_error([file]):
        _write_fully(file, text)


def append_durably(texts: Mapping[Path, str]) -> None:
    """Append to several journals, to all or to none, and wait until it is on the disk. They may
    have other writers that do the same. Raises OSError."""
    with ExitStack() as stack:
        files = [stack.enter_context(open_log(path)) for path in texts]
        for file in files:
            fcntl.flock(file, fcntl.LOCK_EX)
        stack.enter_context(_rollback_on_error(files))
        for file, text in zip(files, texts.values(), strict=True):
            _write_fully(file, text)
        for file in files:
            os.fsync(file.fileno())


@contextmanager
def _rollback_on_error(files: Sequence[BinaryIO]) -> Iterator[None]:
    """Take back what the block appends, should it fail."""
    sizes = [os.fstat(file.fileno()).st_size for file in files]
    try:
        yield
    except OSError:
        for file, size in zip(files, sizes, strict=True):
            os.ftruncate(file.fileno(), size)
        raise


def _write_fully(file: BinaryIO, text: str) -> None:
    data = text.encode(errors="replace")
    if file.write(data) != len(data):  # what the rest would have met
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)


def get_temporary_path(path: Path) -> Path:
    """Return the temporary path of a file or folder that is being written."""
    return path.with_name(f".{path.name}.draft")


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` (new) when the block ends, whole or not at
    all, and is on the disk then."""
    draft = get_temporary_path(target)
    shutil.rmtree(draft, ignore_errors=True)
    make_folder(draft)
    yield draft
    commit_draft(draft, target)


def commit_draft(draft: Path, target: Path) -> None:
    """Give a draft that is complete its name, when it is on the disk."""
    sync_folder(draft)
    draft.rename(target)
    _sync(target.parent)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a path to write a file that becomes `path` when the block ends, whole or not at all,
    and is on the disk then."""
    make_folder(path.parent)
    draft = get_temporary_path(path)
    draft.unlink(missing_ok=True)  # not followed, should it be a link of somebody else's
    draft.touch(PRIVATE_FILE_MODE, exist_ok=False)
    if path.exists():
        draft.chmod(path.stat().st_mode)
    yield draft
    _sync(draft)
    draft.replace(path)
    _sync(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until everything in a folder is on the disk."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            _sync(path)


def _sync(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def raise_write_errors(path: Path) -> Iterator[None]:
    """Have a library write `path` in the block. Raises UserError for its own kinds of error, as on
    a full disk; those of the operating system stay what they are."""
    try:
        yield
    except (UserError, OSError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"{path} cannot be written ({describe_exception(error)}): make room on the disk, and"
            " run the same command again."
        ) from error


def copy_file_mode(folder: Path, reference: Path) -> None:
    """Give the weights in a folder the mode of the file `reference`, which is that of the umask:
    the library safetensors keeps them from everyone but the user who writes them."""
    for file in folder.glob("*.safetensors"):
        shutil.copymode(reference, file)


def require_writable(path: Path) -> None:
    """Raise UserError if nothing can be written at `path`, or below it; nothing is left there."""
    path = path.absolute()
    try:
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
        with TemporaryDirectory(dir=existing, prefix=".") as probe:
            target = Path(probe, *path.relative_to(existing).parts)
            if target != Path(probe):
                get_temporary_path(target).mkdir(parents=True)  # its name is the longest
            with Path(probe, "probe").open("wb") as file:
                file.write(bytes(PROBE_BYTES))
                os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"nothing can be written at {path} ({error.strerror}): choose another place."
        ) from error


def write_text(path: Path, pieces: Iterable[str]) -> None:
    """Write a text file, whole or not at all. Lone surrogates (bytes that were never text) become
    "?"."""
    with (
        atomic_file(path) as draft,
        draft.open("w", encoding="utf-8", errors="replace", newline="\n") as file,
    ):
        file.writelines(pieces)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all. Raises UserError for a number that is not finite:
    JSON has none, so the file could not be read again."""
    write_text(path, [dump_finite_json(path, value, indent=1, ensure_ascii=False)])


def dump_finite_json(path: Path, value: Any, **settings: Any) -> str:
    """Return the JSON of what is written to a file; `settings` are those of `json.dumps`. Raises
    UserError for a number that is not finite, with the keys that lead to it: JSON has none, and
    other programs than Python read no `NaN`."""
    try:
        return json.dumps(value, allow_nan=False, **settings)
    except ValueError as error:
        raise UserError(
            f"{path} would contain {_find_nonfinite(value)}, which is not finite: correct the"
            " reward or the setting that it comes from."
        ) from error


def replace_nonfinite(value: Any) -> Any:
    """Return a value with None for each number in it that is not finite: what is not known."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: replace_nonfinite(item) for key, item in value.items()}
        case list() | tuple():
            return [replace_nonfinite(item) for item in value]
    return value


def _find_nonfinite(value: Any, path: str = "") -> str | None:
    """Return the first number that is not finite, after the keys that lead to it."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path.lstrip('.')} = {value}"
    parts = dict(enumerate(value)) if isinstance(value, list | tuple) else value
    inside = parts.items() if isinstance(parts, dict) else ()
    found = (_find_nonfinite(item, f"{path}.{key}") for key, item in inside)
    return next(filter(None, found), None)
