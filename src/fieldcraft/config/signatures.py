"""Names of a tool and its arguments: `find`, or `find(text, most)`."""

from __future__ import annotations

import re
from typing import NamedTuple

SIGNATURE = re.compile(r"\s*([\w-]+)\s*(?:\(\s*([\w-]+(?:\s*,\s*[\w-]+)*)\s*\)\s*)?")


class Signature(NamedTuple):
    """Signature whose `arguments` are in the tool's order; those that are not named keep their own
    names."""

    name: str
    arguments: tuple[str, ...]


def read_signature(text: str) -> Signature:
    """Read a signature. Raises ValueError for what is no signature."""
    found = SIGNATURE.fullmatch(text)
    if found is None:
        raise ValueError(f"'{text}' is no name of a tool: write it as in find, or find(text)")
    name, arguments = found.groups()
    names = tuple(re.findall(r"[\w-]+", arguments or ""))
    if len(set(names)) < len(names):
        raise ValueError(f"'{text}' has two arguments of one name: give each its own")
    return Signature(name, names)
