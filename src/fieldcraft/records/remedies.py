"""Advice for files that cannot be read: the actual cause first, and nothing destructive."""

from __future__ import annotations

import errno
import os
import pwd
import shlex
from itertools import count
from pathlib import Path

from fieldcraft.types import UserError

DAMAGED_SUFFIX = ".damaged"  # suffix of renamed files and folders
_RETRY_ADVICE = "and run the same command again"
_MEMORY_ERRNOS = {errno.ENOMEM}
_DESCRIPTOR_ERRNOS = {errno.EMFILE, errno.ENFILE}
_DEVICE_ERRNOS = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EREMOTEIO}


def advise_renaming(path: Path) -> str:
    """Return the advice to rename a file or folder to an unused name, so that nothing is lost."""
    names = (f"{path.name}{f'.{n}' if n > 1 else ''}{DAMAGED_SUFFIX}" for n in count(1))
    free = next(name for name in names if not path.with_name(name).exists())
    return f"rename {path} to {free}"


def advise_repair(folder: Path, default: str) -> str:
    """Return the remedy for a damaged file in a model folder, as the end of a sentence.

    A run stores models in RUN/STAGE/model, adapters in RUN/STAGE/adapter and checkpoints in
    RUN/STAGE/step-NNNNNN. For models outside a run the remedy is `default`.
    """
    stage = folder.absolute().parent
    run = stage.parent
    if not (run / "recipe.json").exists():
        return default
    if folder.name.startswith("step-"):
        return (
            f"{advise_renaming(folder)} and run the recipe again, which resumes the stage from the"
            " checkpoint before it, or from the start"
        )
    # A run with a report is complete, as is one of several seeds: nothing in it is repeated.
    reports = [above / "report.html" for above in (run, run.parent)]
    renames = [advise_renaming(path) for path in (stage, *reports) if path.exists()]
    return f"{', '.join(renames)} and run the recipe again, which recreates this model"


def advise_index_rebuild(folder: Path) -> str:
    """Return how to rebuild a search index after its folder was removed; runs rebuild their own."""
    if (folder.absolute().parent / "recipe.json").exists():
        return "run the recipe again, which rebuilds it"
    return "rebuild it with 'fieldcraft index'"


def describe_access_error(path: Path | str, error: BaseException) -> str | None:
    """Return a sentence with the reason why an intact file cannot be read, and the remedy, or None
    for any other error."""
    file = Path(path) if not isinstance(error, OSError) else Path(error.filename or path)
    match error:
        case PermissionError():
            return f"{file} cannot be read (permission denied): {_describe_permission(file)}."
        case MemoryError():
            return f"{file} needs more memory than is free: close other programs, {_RETRY_ADVICE}."
        case OSError(errno=number) if number in _MEMORY_ERRNOS:
            return f"{file} needs more memory than is free: close other programs, {_RETRY_ADVICE}."
        case OSError(errno=number) if number in _DESCRIPTOR_ERRNOS:
            return (
                f"{file} cannot be opened, because too many files are open: raise the limit with"
                f" 'ulimit -n 4096' {_RETRY_ADVICE}."
            )
        case OSError(errno=number, strerror=reason) if number in _DEVICE_ERRNOS:
            return (
                f"{file} cannot be read from the disk ({reason}): check the disk or its"
                f" network connection, {_RETRY_ADVICE}."
            )
    return None


def require_readable(folder: Path) -> None:
    """Raise UserError with the owner, the mode and the remedy if a folder, or a file directly in
    it, cannot be read because of its permissions or the disk."""
    try:
        for file in sorted(folder.iterdir()):
            if file.is_file():
                with file.open("rb"):
                    pass
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if (sentence := describe_access_error(folder, error)) is None:
            raise
        raise UserError(sentence) from error


def _describe_permission(path: Path) -> str:
    """Return the owner and mode of the first inaccessible part of a path, and the command that
    changes them."""
    unreadable = next(
        (part for part in (*reversed(path.parents), path) if not _is_accessible(part)), path
    )
    try:
        found = unreadable.stat()
    except OSError:
        return f"check the permissions of {unreadable.parent} {_RETRY_ADVICE}"
    owner, mode = _get_user_name(found.st_uid), "rx" if unreadable.is_dir() else "r"
    change, quoted = "a+" + mode, shlex.quote(str(unreadable))
    if found.st_uid == os.geteuid():
        who, change = "run", "u+" + mode
    else:
        who = f"you are {_get_user_name(os.geteuid())}, so let {owner} run"
    return (
        f"{unreadable} belongs to {owner} and has the mode {found.st_mode & 0o7777:04o}: {who}"
        f" 'chmod {change} {quoted}' {_RETRY_ADVICE}"
    )


def _is_accessible(path: Path) -> bool:
    """Return whether a folder can be entered, or a file can be read."""
    mode = os.X_OK if path.is_dir() else os.R_OK
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _get_user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"the user {number}"
