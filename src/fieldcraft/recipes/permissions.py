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

from fieldcraft.config.names import list_installed_names
from fieldcraft.config.renamed_keys import builtin_added_keys, translate_stored
from fieldcraft.config.url_secrets import mask_secrets
from fieldcraft.records.paths import expand_home

# The names of consent, and what is allowed by each; what can do most harm comes first.
PERMISSIONS: Mapping[str, str] = {
    "command": "start the program",
    "mcp": "use the MCP server",
    "module": "import",
    "waive": "run programs without the layer of isolation",
    "variable": "hand over the environment variable",
    "address": "contact",
    "file": "use, from outside of its folder,",
}
# Keys whose values are texts for the model or for readers, or names that nothing is looked up by.
_FREE_TEXT_KEYS = frozenset(
    {"instruction", "system_prompt", "chat_template_kwargs", "eval_names", "prefix", "date"}
    | {"table_rows", "comparisons", "cost", "tool_costs"}
)
_BUDGET_SECTIONS = frozenset({"budget", "stages", "evaluation"})  # sections with a budget in them
_KEY_PERMISSIONS: Mapping[str, str] = {
    "mcp": "mcp",
    "command": "command",
    "python": "command",  # an interpreter
    "taskset": "module",
    "libraries": "module",
    "allow_missing_layers": "waive",
    **dict.fromkeys(("url", "urls", "server_url", "allow_hosts"), "address"),
}
# Keys of files that are read where they are, and nothing is done where they are not.
_OPTIONAL_FILE_KEYS = frozenset({"index", "model", "tasks", "corpus", "demonstrations", "pairs"})
_STORAGE_KEYS = frozenset({"files", "cache", "record", "replay", "weight_folder"})
_WEB_TOOLS = frozenset({"web_search", "crawl_page"})  # tools that need no address to be told one
_MODULE_REGEX = re.compile(r"[^\s:/\\]+:[^\s/\\]*")


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """One thing that a folder would do.

    Attributes:
        name: by which it is allowed, one of `PERMISSIONS`.
        key: of the file, as in tools.0.mcp.
        detail: the command, module, address or path.
    """

    name: str
    key: str
    detail: str

    def __str__(self) -> str:
        return f"{PERMISSIONS[self.name]} {_make_printable(self.detail)}"


@dataclass(frozen=True, slots=True)
class _TextLeaf:
    """A text of a file: where it is, the key that it belongs to, and the section of that key."""

    path: tuple[str, ...]
    key: str
    text: str
    section: Mapping[str, Any]


def find_permission_requests(data: Mapping[str, Any], folder: Path) -> list[PermissionRequest]:
    """Return the things that the contents of a file in a folder ask for, the most harmful kind
    first. Nothing is imported, started or contacted to find it."""
    component_names = list_installed_names()
    found = [
        PermissionRequest(name, ".".join(leaf.path), _describe_leaf(leaf, name))
        for leaf in _iter_stored_leaves(data)
        if (name := _classify_leaf(leaf, folder, component_names)) is not None
    ]
    return sorted(found, key=lambda request: [*PERMISSIONS].index(request.name))


def find_escaping_links(folder: Path, data: Mapping[str, Any]) -> list[PermissionRequest]:
    """Return the symbolic links in a folder that lead out of it, but for those to files that `data`
    names, and to the blobs of a Hugging Face cache."""
    home = folder.resolve()
    texts = {leaf.text for leaf in _iter_stored_leaves(data)}
    allowed = {_resolve_path(text) for text in texts if "/" in text or _path_exists(text)}
    blobs = home.parent.parent / "blobs"
    found = []
    for link in _iter_links(folder):
        target = link.resolve()
        inside = target.is_relative_to(home) or target.parent == blobs
        if not inside and target not in allowed:
            found.append(
                PermissionRequest("file", link.relative_to(folder).as_posix(), str(target))
            )
    return found


def _iter_links(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        for name in sorted(folders + files):
            link = Path(parent, name)
            if link.is_symlink():
                yield link


def _iter_stored_leaves(data: Mapping[str, Any]) -> Iterator[_TextLeaf]:
    """Yield every text of a file by its current keys. User-defined stage types, which are not
    imported before they are allowed, stay as they are: none of their keys is free text."""
    return _iter_leaves(translate_stored(data, builtin_added_keys), (), "", {})


def _iter_leaves(
    value: Any, path: tuple[str, ...], key: str, section: Mapping[str, Any]
) -> Iterator[_TextLeaf]:
    """Yield every text of a file; keys are texts, too, because rewards are named by them."""
    match value:
        case Mapping():
            for own_key, inner in value.items():
                if own_key not in _FREE_TEXT_KEYS:
                    yield _TextLeaf((*path, own_key), "", own_key, value)
                    yield from _iter_leaves(inner, (*path, own_key), own_key, value)
        case list() | tuple() if key == "command":
            yield _TextLeaf(path, key, shlex.join(map(str, value)), section)
        case list() | tuple():
            for number, inner in enumerate(value):
                yield from _iter_leaves(inner, (*path, str(number)), key, section)
        case str() if value and not _is_free_text(path):
            yield _TextLeaf(path, key, value, section)


def _is_free_text(path: tuple[str, ...]) -> bool:
    """Return whether a text is free by its place: the name of the recipe, names of tools and the
    prompt for a summary. In other sections, keys of these names are settings of components."""
    if path[-2:] == ("fold", "prompt"):
        return path[0] in _BUDGET_SECTIONS
    return path == ("name",) or (path[:1] == ("tools",) and path[2:3] == ("names",))


def _classify_leaf(leaf: _TextLeaf, folder: Path, component_names: Collection[str]) -> str | None:
    """Return the name by which a text is allowed; None where it is mere data. `component_names`
    are of packages."""
    if (name := _classify_by_key(leaf)) is not None:
        return name or None
    text = leaf.text
    if leaf.key == "encoder":
        return "file" if _path_exists(text) else "address"  # inside as well: it may name modules
    if "://" in text:
        return "address"
    if leaf.path[0] in _OPTIONAL_FILE_KEYS and len(leaf.path) == 1 and not _path_exists(text):
        return None
    if _is_path(leaf) and _is_outside(text, folder):
        return "file"
    return "module" if _MODULE_REGEX.fullmatch(text) or text in component_names else None


def _classify_by_key(leaf: _TextLeaf) -> str | None:
    """Return the same where the key tells it: "" for mere data, None where only the text can
    tell."""
    key, tool = leaf.key, leaf.path[0] == "tools"
    if key in _KEY_PERMISSIONS:
        return _KEY_PERMISSIONS[key]
    if key == "env":  # of an MCP server names of variables, of an environment what makes its games
        return "variable" if tool else "module"
    if key.endswith("_env"):  # a key, which goes where the section's address is
        return "variable" if leaf.section.get("url", leaf) is not None else ""
    if tool and key == "name" and leaf.text in _WEB_TOOLS:
        return "" if leaf.section.get("provider") == "index" else "address"
    return None


def _is_path(leaf: _TextLeaf) -> bool:
    """Return whether a text is a path: relative ones, which begin at the current folder, are known
    by their keys."""
    text = leaf.text
    known = leaf.key in _STORAGE_KEYS or (len(leaf.path) == 1 and leaf.key in _OPTIONAL_FILE_KEYS)
    named = leaf.path[:2] == ("evaluation", "tasks") and bool(leaf.key)
    return known or named or text.startswith(("/", "~")) or ".." in PurePath(text).parts


def _is_outside(text: str, folder: Path) -> bool:
    path = _resolve_path(text)
    return path is None or not path.is_relative_to(folder.resolve())


def _path_exists(text: str) -> bool:
    path = _resolve_path(text)
    return path is not None and path.exists()


def _resolve_path(text: str) -> Path | None:
    """Return the target of a path, as those of recipes are read; None for one that can lead
    nowhere."""
    try:
        path = Path(expand_home(text)).resolve()
        path.exists()
    except (ValueError, OSError, RuntimeError):  # a null byte, too long, a loop of links
        return None
    return path


def _describe_leaf(leaf: _TextLeaf, name: str) -> str:
    if name == "address" and leaf.text in _WEB_TOOLS:
        return f"the web by the tool {leaf.text}"
    return mask_secrets(leaf.text)


def _make_printable(text: str) -> str:
    """Return a text in one line that can write nothing but itself to a terminal. It is whole up to
    a length that no honest command has."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    more = len(line) - 1000
    return f"'{line}'" if more <= 0 else f"'{line[:1000]}' and {more} more letters"


def list_permission_names(requests: Collection[PermissionRequest]) -> list[str]:
    """Return the names by which things are allowed, once each."""
    return list(dict.fromkeys(ask.name for ask in requests))
