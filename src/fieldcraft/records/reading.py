"""The one reader of files of users and of runs: what is wrong with one is said in a sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from fieldcraft.config.complaints import first_problem
from fieldcraft.config.names import cause_of
from fieldcraft.records.remedies import obstacle
from fieldcraft.types import UserError

MOST_SHOWN = 160  # characters of what a parser says
MAKE_ANEW = "restore the file, or run the recipe anew in another folder"


class Damaged(UserError):
    """A file is not there, or holds something else than it should."""


@contextmanager
def reading(what: Path | str, advice: str) -> Iterator[None]:
    """Read the file `what` in the block, and make of it what it is for, but nothing else.

    Raises Damaged for whatever is raised there: what is wrong, and the advice what to do. A file
    that may not be read, or that the machine does not give, is not damaged: a UserError has its own
    remedy.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # parsers raise what they like: that of tokenizers, Exception itself
        if sentence := obstacle(what, error):
            raise UserError(sentence) from error
        raise Damaged(f"{what} {fault(error)}; {advice}.") from error


def fault(error: Exception) -> str:
    """Return the end of a sentence that begins with the name of a file: what is wrong with it."""
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
            return f"is not valid YAML ({_short(str(error))})"
        case ValidationError():
            _, clause, place = first_problem(error)
            where = f"{'.'.join(map(str, place))}: " if place else ""
            return f"holds something else than it should ({_short(where + clause)})"
        case KeyError():
            return f"lacks {error}"
        case OSError(strerror=str(reason)):
            return f"cannot be read ({reason})"
    return f"cannot be read ({_short(cause_of(error))})"


def _short(text: str) -> str:
    return shorten(text, MOST_SHOWN, placeholder=" ...")


def require_file(path: Path, advice: str) -> None:
    """Raise Damaged for a path that is no file."""
    if not path.exists():
        raise Damaged(f"{path} does not exist; {advice}.")
    if path.is_dir():
        raise Damaged(f"{path} is a folder, not a file; {advice}.")


# -- JSON --------------------------------------------------------------------------------------


def read_json(path: Path, shape: Any, advice: str) -> Any:
    """Return the value in a JSON file, as it is there, once it is known to have the type `shape`.

    Raises Damaged, which ends in the advice, for any other file.
    """
    with reading(path, advice):
        value = json.loads(
            path.read_bytes(), parse_constant=_finite, parse_float=_finite, parse_int=whole
        )
        TypeAdapter(shape).validate_python(value, strict=True)
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no number that can be computed with")
    return number


def whole(text: str) -> int:
    """Return the integer of a text in JSON. Raises ValueError for one that is too large for a
    float: it is a mistake, and calculations would fail on it."""
    _finite(text)
    return int(text)


# -- YAML --------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Refuses a key that comes twice in a mapping: PyYAML would keep the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is not plain text", key.start_mark
                )
            if (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key.value}' comes twice", key.start_mark
                )
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def parse_yaml(text: bytes | str, what: Path | str, advice: str) -> Any:
    """Return the value that a YAML text stands for. Raises Damaged as `reading` does."""
    with reading(what, advice):
        return yaml.load(text, _Loader)
