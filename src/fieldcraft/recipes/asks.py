"""A model folder is data: the list of what it asks for beyond that.

A file in such a folder (`fieldcraft.json`, `recipe.json`, the manifest of an index) may name
programs, modules, files and addresses. Each of them has a name here by which a user allows it, see
`recipes/consent.py`. What is listed follows from the texts themselves wherever these tell it, and
not only from their keys: a part of others may have settings of any name.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from fieldcraft.config.addresses import shown_address
from fieldcraft.config.names import of_packages
from fieldcraft.records.paths import at_home

# The names of consent, and what is allowed by each; what can do most harm comes first.
ASKS: Mapping[str, str] = {
    "command": "start the program",
    "mcp": "use the MCP server",
    "module": "import",
    "waive": "run programs without the layer of isolation",
    "variable": "hand over the environment variable",
    "address": "contact",
    "file": "use, from outside of its folder,",
}
# Keys whose values are texts for the model or for readers, or names that nothing is looked up by.
_TEXTS = frozenset(
    {"recipe", "instruction", "system", "template", "request", "called", "unseen", "prefix", "date"}
    | {"rows", "comparisons", "cost", "tool_costs"}
)
_BY_KEY: Mapping[str, str] = {
    "mcp": "mcp",
    "command": "command",
    "python": "command",  # an interpreter
    "taskset": "module",
    "libraries": "module",
    "waive": "waive",
    **dict.fromkeys(("url", "urls", "server_url", "allow_hosts"), "address"),
}
# Keys of files that are read where they are, and nothing is done where they are not.
_READ = frozenset({"index", "model", "tasks", "corpus", "demonstrations", "pairs"})
_KEPT = frozenset({"files", "cache", "record", "replay", "exchange"})
_WEB = frozenset({"web_search", "crawl_page"})  # tools that need no address to be told one
_MODULE = re.compile(r"[^\s:/\\]+:[^\s/\\]*")


@dataclass(frozen=True, slots=True)
class Ask:
    """One thing that a folder would do.

    Attributes:
        name: by which it is allowed, one of `ASKS`.
        key: of the file, as in tools.0.mcp.
        detail: the command, module, address or path.
    """

    name: str
    key: str
    detail: str

    def __str__(self) -> str:
        return f"{ASKS[self.name]} {_printable(self.detail)}"


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A text of a file: where it is, the key that it belongs to, and the section of that key."""

    place: tuple[str, ...]
    key: str
    text: str
    section: Mapping[str, Any]


def asks_of(data: Mapping[str, Any], folder: Path) -> list[Ask]:
    """Return the things that the contents of a file in a folder ask for, the most harmful kind
    first. Nothing is imported, started or contacted to find it."""
    parts = of_packages()
    found = [
        Ask(name, ".".join(leaf.place), _detail(leaf, name))
        for leaf in _leaves(data, (), "", {})
        if (name := _name(leaf, folder, parts)) is not None
    ]
    return sorted(found, key=lambda ask: [*ASKS].index(ask.name))


def links_out(folder: Path, data: Mapping[str, Any]) -> list[Ask]:
    """Return the symbolic links in a folder that lead out of it, but for those to files that `data`
    names, and to the blobs of a Hugging Face cache."""
    home = folder.resolve()
    texts = {leaf.text for leaf in _leaves(data, (), "", {})}
    named = {_resolved(text) for text in texts if "/" in text or _is_there(text)}
    blobs = home.parent.parent / "blobs"
    found = []
    for link in _links(folder):
        target = link.resolve()
        inside = target.is_relative_to(home) or target.parent == blobs
        if not inside and target not in named:
            found.append(Ask("file", link.relative_to(folder).as_posix(), str(target)))
    return found


def _links(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        for name in sorted(folders + files):
            path = Path(place, name)
            if path.is_symlink():
                yield path


def _leaves(
    value: Any, place: tuple[str, ...], key: str, section: Mapping[str, Any]
) -> Iterator[_Leaf]:
    """Yield every text of a file; keys are texts, too, because rewards are named by them."""
    match value:
        case Mapping():
            for own, inner in value.items():
                if own not in _TEXTS:
                    yield _Leaf((*place, own), "", own, value)
                    yield from _leaves(inner, (*place, own), own, value)
        case list() | tuple() if key == "command":
            yield _Leaf(place, key, shlex.join(map(str, value)), section)
        case list() | tuple():
            for number, inner in enumerate(value):
                yield from _leaves(inner, (*place, str(number)), key, section)
        case str() if value:
            yield _Leaf(place, key, value, section)


def _name(leaf: _Leaf, folder: Path, parts: Collection[str]) -> str | None:
    """Return the name by which a text is allowed; None where it is mere data. `parts` are of
    packages."""
    if (name := _by_key(leaf)) is not None:
        return name or None
    text = leaf.text
    if leaf.key == "encoder":
        return "file" if _is_there(text) else "address"  # inside as well: it may name modules
    if "://" in text:
        return "address"
    if leaf.place[0] in _READ and len(leaf.place) == 1 and not _is_there(text):
        return None
    if _is_path(leaf) and _outside(text, folder):
        return "file"
    return "module" if _MODULE.fullmatch(text) or text in parts else None


def _by_key(leaf: _Leaf) -> str | None:
    """Return the same where the key tells it: "" for mere data, None where only the text can
    tell."""
    key, tool = leaf.key, leaf.place[0] == "tools"
    if key in _BY_KEY:
        return _BY_KEY[key]
    if key == "env":  # of an MCP server names of variables, of an environment what makes its games
        return "variable" if tool else "module"
    if key.endswith("_env"):  # a key, which goes where the section's address is
        return "variable" if leaf.section.get("url", leaf) is not None else ""
    if tool and key == "name" and leaf.text in _WEB:
        return "" if leaf.section.get("provider") == "index" else "address"
    return None


def _is_path(leaf: _Leaf) -> bool:
    """Return whether a text is a path: relative ones, which begin at the current folder, are known
    by their keys."""
    text = leaf.text
    known = leaf.key in _KEPT or (len(leaf.place) == 1 and leaf.key in _READ)
    named = leaf.place[:2] == ("evaluation", "tasks") and bool(leaf.key)
    return known or named or text.startswith(("/", "~")) or ".." in PurePath(text).parts


def _outside(text: str, folder: Path) -> bool:
    path = _resolved(text)
    return path is None or not path.is_relative_to(folder.resolve())


def _is_there(text: str) -> bool:
    path = _resolved(text)
    return path is not None and path.exists()


def _resolved(text: str) -> Path | None:
    """Return the target of a path, as those of recipes are read; None for one that can lead
    nowhere."""
    try:
        path = Path(at_home(text)).resolve()
        path.exists()
    except (ValueError, OSError, RuntimeError):  # a null byte, too long, a loop of links
        return None
    return path


def _detail(leaf: _Leaf, name: str) -> str:
    if name == "address" and leaf.text in _WEB:
        return f"the web by the tool {leaf.text}"
    return shown_address(leaf.text)


def _printable(text: str) -> str:
    """Return a text in one line that can write nothing but itself to a terminal. It is whole up to
    a length that no honest command has."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    more = len(line) - 1000
    return f"'{line}'" if more <= 0 else f"'{line[:1000]}' and {more} more letters"


def names_of(asks: Collection[Ask]) -> list[str]:
    """Return the names by which things are allowed, once each."""
    return list(dict.fromkeys(ask.name for ask in asks))
