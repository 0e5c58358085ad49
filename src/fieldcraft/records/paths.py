"""Paths given by users: expansion of ~, and names that are not UTF-8.

A shell expands ~ only at the start of a word, not in tasks=~/q.jsonl, and neither recipes nor
Python expand it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeVar

from fieldcraft.types import UserError

HOME_PREFIX = "~/"
CHECKPOINT_GLOB = "step-*[0-9]"  # in the folder of a stage; renamed checkpoints do not match
_OPTION_REGEX = re.compile(r"(--?[\w-]+=|[\w.]+=|)(~/.*)", re.DOTALL)

T = TypeVar("T")


def expand_home(value: T) -> T:
    """Return the value with ~/ at the start of every path and text replaced by the user's home
    folder."""
    found: object = value
    match value:
        case str() if value.startswith(HOME_PREFIX):
            found = str(Path(value).expanduser())
        case Path() if str(value).startswith(HOME_PREFIX):
            found = value.expanduser()
        case dict():
            found = {key: expand_home(inner) for key, inner in value.items()}
        case list():
            found = [expand_home(inner) for inner in value]
    return found  # type: ignore[return-value]


def expand_home_in_argument(argument: str) -> str:
    """Expand a command-line argument, as in ~/run, --out=~/run or tasks=~/q.jsonl."""
    found = _OPTION_REGEX.fullmatch(argument)
    return f"{found[1]}{expand_home(found[2])}" if found else argument


def require_utf8_name(path: Path) -> None:
    """Raise UserError for a path with a part that is not UTF-8. Python represents such bytes by
    surrogates, which the libraries of models, tokenizers and indices reject."""
    for part in (*reversed(path.parents), path):
        name = os.fsencode(part)
        if name.decode(errors="replace").encode() != name:
            raise UserError(
                f"the name of {name.decode(errors='backslashreplace')} is not UTF-8: rename it with"
                " mv, or choose another folder."
            )
