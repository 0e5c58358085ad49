"""Remedies for a file that cannot be read: the true cause first, and nothing that destroys."""

from __future__ import annotations

import errno
import os
import pwd
import shlex
from itertools import count
from pathlib import Path

from fieldcraft.types import UserError

DAMAGED = ".damaged"  # the end of the name of what was put aside
_AGAIN = "and run the same command again"
_MEMORY = {errno.ENOMEM}
_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}
_DEVICE = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EREMOTEIO}


def put_aside(path: Path) -> str:
    """Return the advice to rename a file or a folder, so that nothing is lost: the name is free."""
    names = (f"{path.name}{f'.{n}' if n > 1 else ''}{DAMAGED}" for n in count(1))
    free = next(name for name in names if not path.with_name(name).exists())
    return f"rename {path} to {free}"


def take_out(path: Path) -> str:
    """Return the advice to go on without a line of a journal, whose others were expensive."""
    return f"keep a copy of {path.name}, then take the line out"


def remedy(folder: Path, otherwise: str) -> str:
    """Return what to do about a damaged file in the folder of a model, as the end of a sentence.

    A run keeps its models in RUN/STAGE/model, adapters in RUN/STAGE/adapter and checkpoints in
    RUN/STAGE/step-NNNNNN. For models of no run it is `otherwise`.
    """
    stage = folder.absolute().parent
    run = stage.parent
    if not (run / "recipe.json").exists():
        return otherwise
    if folder.name.startswith("step-"):
        return (
            f"{put_aside(folder)} and run the recipe again, which resumes the stage from the"
            " checkpoint before it, or from its beginning"
        )
    # A run with a report is done, and so is one of several seeds: nothing of it is made anew.
    reports = [above / "report.html" for above in (run, run.parent)]
    aside = [put_aside(path) for path in (stage, *reports) if path.exists()]
    return f"{', '.join(aside)} and run the recipe again, which makes this model anew"


def index_remedy(folder: Path) -> str:
    """Return how a search index is made anew, once nothing stands in its place: that of a run by
    the run."""
    if (folder.absolute().parent / "recipe.json").exists():
        return "run the recipe again, which builds it anew"
    return "build it anew with 'fieldcraft index'"


def obstacle(path: Path | str, error: BaseException) -> str | None:
    """Return why a file cannot be read although nothing is wrong with what it holds, and the
    remedy, as a sentence; None for an error that says something else."""
    file = Path(path) if not isinstance(error, OSError) else Path(error.filename or path)
    match error:
        case PermissionError():
            return f"{file} may not be read: {_permission(file)}."
        case MemoryError():
            return f"{file} needs more memory than is free: close other programs, {_AGAIN}."
        case OSError(errno=number) if number in _MEMORY:
            return f"{file} needs more memory than is free: close other programs, {_AGAIN}."
        case OSError(errno=number) if number in _DESCRIPTORS:
            return (
                f"{file} is one file too many that is open: raise the limit with 'ulimit -n 4096'"
                f" {_AGAIN}."
            )
        case OSError(errno=number, strerror=reason) if number in _DEVICE:
            return (
                f"{file} does not come from the disk ({reason}): look after the disk, or the"
                f" network that it is on, {_AGAIN}."
            )
    return None


def require_readable(folder: Path) -> None:
    """Raise UserError with the owner, the mode and the remedy if a file that lies in a folder, or
    the folder itself, may not be read, or does not come from the disk."""
    try:
        for file in sorted(folder.iterdir()):
            if file.is_file():
                with file.open("rb"):
                    pass
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if (sentence := obstacle(folder, error)) is None:
            raise
        raise UserError(sentence) from error


def _permission(path: Path) -> str:
    """Return the owner of the first part of a path that may not be read, and who can change
    that."""
    closed = next((part for part in (*reversed(path.parents), path) if not _is_open(part)), path)
    try:
        found = closed.stat()
    except OSError:
        return f"look at the permissions of {closed.parent} {_AGAIN}"
    owner, wanted = _user(found.st_uid), "rx" if closed.is_dir() else "r"
    change, quoted = "a+" + wanted, shlex.quote(str(closed))
    if found.st_uid == os.geteuid():
        who, change = "run", "u+" + wanted
    else:
        who = f"you are {_user(os.geteuid())}, so let {owner} run"
    return (
        f"{closed} belongs to {owner} and has the mode {found.st_mode & 0o7777:04o}: {who}"
        f" 'chmod {change} {quoted}' {_AGAIN}"
    )


def _is_open(path: Path) -> bool:
    """Return whether a folder may be entered, or a file be read."""
    wanted = os.X_OK if path.is_dir() else os.R_OK
    return os.access(path, wanted, effective_ids=os.access in os.supports_effective_ids)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"the user {number}"
