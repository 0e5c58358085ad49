"""Names of a tool and its arguments: `find`, or `find(text, most)`."""

from __future__ import annotations

import re
from typing import NamedTuple

SIGNATURE_REGEX = re.compile(r"\s*([\w-]+)\s*(?:\(\s*([\w-]+(?:\s*,\s*[\w-]+)*)\s*\)\s*)?")


class ToolSignature(NamedTuple):
    """Signature with `arguments` in the tool's order; arguments without a name here keep their
    original names."""

    name: str
    arguments: tuple[str, ...]


def parse_signature(text: str) -> ToolSignature:
    """Parse a signature. Raises ValueError if it is not a signature."""
    match = SIGNATURE_REGEX.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a tool signature: write it as in find or find(text)")
    name, arguments = match.groups()
    names = tuple(re.findall(r"[\w-]+", arguments or ""))
    if len(set(names)) < len(names):
        raise ValueError(f"'{text}' has two arguments of the same name: rename one")
    return ToolSignature(name, names)
