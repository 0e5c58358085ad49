"""Reading of user and run files, with errors that describe the fault and its remedy.

An error is one sentence. Its advice names the actual cause first, and nothing in it is
destructive.
"""

from __future__ import annotations

import errno
import json
import math
import os
import pwd
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from fieldcraft.config.names import describe_exception
from fieldcraft.config.validation_errors import locate_validation_error
from fieldcraft.types import UserError

MAX_YAML_VALUES = 100_000  # maximum size of a file, much larger than that of any recipe
MAX_MESSAGE_CHARS = 160  # maximum length of a parser's message
RERUN_ADVICE = "restore the file, or run the recipe in another folder"
DAMAGED_SUFFIX = ".damaged"  # suffix of renamed files and folders
_RETRY_ADVICE = "and run the same command again"
_MEMORY_ERRNOS = {errno.ENOMEM}
_DESCRIPTOR_ERRNOS = {errno.EMFILE, errno.ENFILE}
_DEVICE_ERRNOS = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EREMOTEIO}


class RecipeKeyError(UserError):
    """Error of a file whose remedy is a key of the recipe. A command that has an option instead
    names it (`cli/app.py:advise_options`).

    Args:
        problem: the sentence up to the advice.
        key: the key of the recipe; "relevance" for judgements of relevance, which have none.
        advice: the advice to set this key.
        value: value that the advice suggests.
    """

    def __init__(self, problem: str, key: str, advice: str, value: str = "") -> None:
        super().__init__(f"{problem}{advice}.")
        self.problem, self.key, self.value = problem, key, value


class DamagedFileError(UserError):
    """Error for a file that is missing or has unexpected contents."""


@contextmanager
def raise_read_errors(source: Path | str, advice: str) -> Iterator[None]:
    """Convert errors of the block, which only reads and parses the file `source`.

    Raises DamagedFileError for any exception in the block, with the fault and the advice.
    A file that cannot be read because of permissions or the machine is not damaged; it raises a
    UserError with a specific remedy.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # parsers raise anything; tokenizers even a plain Exception
        if sentence := describe_access_error(source, error):
            raise UserError(sentence) from error
        raise DamagedFileError(f"{source} {describe_fault(error)}; {advice}.") from error


def describe_fault(error: Exception) -> str:
    """Return the fault of a file as the end of a sentence that starts with its name."""
    match error:
        case FileNotFoundError():
            return "does not exist"
        case IsADirectoryError():
            return "is a folder, not a file"
        case EOFError():
            return "is cut short"
        case RecursionError():
            return "is nested too deeply"
        case UnicodeDecodeError():
            return "is not text in UTF-8"
        case json.JSONDecodeError(doc=text) if not text.strip():
            return "is empty"
        case json.JSONDecodeError():
            return f"is not JSON ({error})"
        case yaml.MarkedYAMLError(problem=problem, problem_mark=yaml.Mark(line=line)):
            return f"is not valid YAML ({problem}, line {line + 1})"
        case yaml.YAMLError():
            return f"is not valid YAML ({_shorten(str(error))})"
        case ValidationError():
            return f"has unexpected contents ({_shorten(locate_validation_error(error))})"
        case KeyError():
            return f"lacks {error}"
        case OSError(strerror=str(reason)):
            return f"cannot be read ({reason})"
    return f"cannot be read ({_shorten(describe_exception(error))})"


def _shorten(text: str) -> str:
    return shorten(text, MAX_MESSAGE_CHARS, placeholder=" ...")


def require_file(path: Path, advice: str) -> None:
    """Raise DamagedFileError for a path that is not a file."""
    if not path.exists():
        raise DamagedFileError(f"{path} does not exist; {advice}.")
    if path.is_dir():
        raise DamagedFileError(f"{path} is a folder, not a file; {advice}.")


# -- JSON --------------------------------------------------------------------------------------


def read_json(path: Path, expected_type: Any, advice: str) -> Any:
    """Return the value of a JSON file unchanged, after validating that it has the type
    `expected_type`.

    Raises DamagedFileError, which ends with the advice, for any other file.
    """
    with raise_read_errors(path, advice):
        value = json.loads(
            path.read_bytes(),
            parse_constant=_parse_finite_float,
            parse_float=_parse_finite_float,
            parse_int=parse_finite_int,
        )
        TypeAdapter(expected_type).validate_python(value, strict=True)
    return value


def _parse_finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def parse_finite_int(text: str) -> int:
    """Return the integer of a JSON text. Raises ValueError if it is too large for a float, because
    calculations would fail on it."""
    _parse_finite_float(text)
    return int(text)


# -- YAML --------------------------------------------------------------------------------------


class _UniqueKeyLoader(yaml.SafeLoader):
    """Loader that rejects repeated keys in a mapping, of which PyYAML would keep the last one, and
    a small file whose aliases expand to more values than a program can visit."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _count_yaml_values(node, {}) > MAX_YAML_VALUES:
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"it has more than {MAX_YAML_VALUES:,} values, with its aliases written out",
                node.start_mark,
            )
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is not plain text", key.start_mark
                )
            if (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key.value}' is repeated", key.start_mark
                )
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def _count_yaml_values(node: yaml.Node, counts: dict[yaml.Node, int]) -> int:
    """Return the number of values in a node with its aliases written out. Each node is visited
    once; `counts` has those of the visited ones. Raises RecursionError for one within itself."""
    if node not in counts:
        match node:
            case yaml.MappingNode(value=pairs):
                parts = [part for pair in pairs for part in pair]
            case yaml.SequenceNode(value=parts):
                pass
            case _:
                parts = []
        counts[node] = 1 + sum(_count_yaml_values(part, counts) for part in parts)
    return counts[node]


def parse_yaml(text: bytes | str, source: Path | str, advice: str) -> Any:
    """Return the value of a YAML text. Raises DamagedFileError as `raise_read_errors` does."""
    with raise_read_errors(source, advice):
        return yaml.load(text, _UniqueKeyLoader)


# -- advice ------------------------------------------------------------------------------------


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
        (part for part in (*reversed(path.parents), path) if not is_accessible(part)), path
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


def is_accessible(path: Path) -> bool:
    """Return whether a folder can be entered, or a file can be read."""
    mode = os.X_OK if path.is_dir() else os.R_OK
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _get_user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"the user {number}"
