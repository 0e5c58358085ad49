"""Reading of user and run files, with errors that describe the fault in one sentence."""

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

from fieldcraft.config.names import describe_exception
from fieldcraft.config.validation_errors import describe_validation_error
from fieldcraft.records.remedies import describe_access_error
from fieldcraft.types import UserError

MAX_MESSAGE_CHARS = 160  # maximum length of a parser's message
RERUN_ADVICE = "restore the file, or run the recipe in another folder"


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
            _, clause, path = describe_validation_error(error)
            location = f"{'.'.join(map(str, path))}: " if path else ""
            return f"has unexpected contents ({_shorten(location + clause)})"
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
    """Loader that rejects repeated keys in a mapping, of which PyYAML would keep the last one."""

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


def parse_yaml(text: bytes | str, source: Path | str, advice: str) -> Any:
    """Return the value of a YAML text. Raises DamagedFileError as `raise_read_errors` does."""
    with raise_read_errors(source, advice):
        return yaml.load(text, _UniqueKeyLoader)
