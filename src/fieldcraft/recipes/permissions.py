"""Permissions: the list of actions that a model folder requests beyond providing data.

A file in such a folder (`fieldcraft.json`, `recipe.json`, the manifest of an index) may name
programs, modules, files and addresses. Each kind of request has a name by which a user allows it,
see `recipes/consent.py`. Requests are detected from the values where possible, not only from their
keys: third-party components may have settings with any name.
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

# Names of permissions, and the action that each allows; the most harmful ones come first.
PERMISSIONS: Mapping[str, str] = {
    "command": "start the program",
    "mcp": "use the MCP server",
    "module": "import",
    "waive": "run programs without the layer of isolation",
    "variable": "hand over the environment variable",
    "address": "contact",
    "file": "use, from outside of its folder,",
}
# Keys whose values are texts for the model or for people, or names that are never resolved.
_FREE_TEXT_KEYS = frozenset(
    {"instruction", "system_prompt", "chat_template_kwargs", "eval_names", "prefix", "date"}
    | {"table_rows", "comparisons", "cost", "tool_costs"}
)
_BUDGET_SECTIONS = frozenset({"budget", "stages", "evaluation"})  # sections with a budget in them
_KEY_PERMISSIONS: Mapping[str, str] = {
    "mcp": "mcp",
    **dict.fromkeys(("command", "run"), "command"),
    "python": "command",  # an interpreter
    "image": "command",  # of a container
    "taskset": "module",
    "libraries": "module",
    "allow_missing_layers": "waive",
    **dict.fromkeys(("url", "urls", "server_url", "allow_hosts"), "address"),
}
# Keys of files that are only read, and ignored if missing.
_OPTIONAL_FILE_KEYS = frozenset({"index", "model", "tasks", "corpus", "demonstrations", "pairs"})
_STORAGE_KEYS = frozenset({"files", "cache", "record", "replay", "weight_folder"})
_WEB_TOOLS = frozenset({"web_search", "crawl_page"})  # tools with built-in addresses
_WEB_BACKENDS = frozenset({"e2b"})  # sandbox backends with built-in addresses
_MODULE_REGEX = re.compile(r"[^\s:/\\]+:[^\s/\\]*")


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """A single request of a folder.

    Attributes:
        name: the permission that allows it, a key of `PERMISSIONS`.
        key: key in the file, as in tools.0.mcp.
        detail: the command, module, address or path.
    """

    name: str
    key: str
    detail: str

    def __str__(self) -> str:
        return f"{PERMISSIONS[self.name]} {_make_printable(self.detail)}"


@dataclass(frozen=True, slots=True)
class _TextLeaf:
    """A text in a file: its path, the key that it belongs to, and the section of that key."""

    path: tuple[str, ...]
    key: str
    text: str
    section: Mapping[str, Any]


def find_permission_requests(data: Mapping[str, Any], folder: Path) -> list[PermissionRequest]:
    """Return the requests in the contents of a file in a folder, the most harmful kind first.
    Nothing is imported, started or contacted for this."""
    component_names = list_installed_names()
    found = [
        PermissionRequest(name, ".".join(leaf.path), _describe_leaf(leaf, name))
        for leaf in _iter_stored_leaves(data)
        if (name := _classify_leaf(leaf, folder, component_names)) is not None
    ]
    return sorted(found, key=lambda request: [*PERMISSIONS].index(request.name))


def find_escaping_links(folder: Path, data: Mapping[str, Any]) -> list[PermissionRequest]:
    """Return the symbolic links in a folder that lead out of it, except links to files that `data`
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
    """Yield every text of a file, including keys, because rewards are named by keys."""
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
    """Return the permission that a text requires, or None for plain data. `component_names` are the
    names that installed packages register."""
    if (name := _classify_by_key(leaf)) is not None:
        return name or None
    text = leaf.text
    if leaf.key == "encoder":
        return "file" if _path_exists(text) else "address"  # inside, too: it may name modules
    if "://" in text:
        return "address"
    if leaf.path[0] in _OPTIONAL_FILE_KEYS and len(leaf.path) == 1 and not _path_exists(text):
        return None
    if _is_path(leaf) and _is_outside(text, folder):
        return "file"
    return "module" if _MODULE_REGEX.fullmatch(text) or text in component_names else None


def _classify_by_key(leaf: _TextLeaf) -> str | None:
    """Return the permission determined by the key: "" for plain data, or None if it depends on the
    text."""
    key, section = leaf.key, leaf.path[0]
    tool = section == "tools"
    if key in _KEY_PERMISSIONS:
        return _KEY_PERMISSIONS[key]
    if key == "env":  # of an MCP server: names of variables; of an environment: its module
        return "variable" if tool else "module"
    if key.endswith("_env"):  # an API key, which is sent to the address of the section
        return "variable" if leaf.section.get("url", leaf) is not None else ""
    if tool and key == "name" and leaf.text in _WEB_TOOLS:
        return "" if leaf.section.get("provider") == "index" else "address"
    is_backend = key == "backend" or "backend" in leaf.path[:-1]
    if section in ("tools", "environment") and is_backend and leaf.text in _WEB_BACKENDS:
        return "address"
    return None


def _is_path(leaf: _TextLeaf) -> bool:
    """Return whether a text is a path: relative ones, which start at the current folder, are
    recognised by their keys."""
    text = leaf.text
    known = leaf.key in _STORAGE_KEYS or (len(leaf.path) == 1 and leaf.key in _OPTIONAL_FILE_KEYS)
    named = leaf.path[:2] in (("evaluation", "tasks"), ("environment", "tasks")) and bool(leaf.key)
    return known or named or text.startswith(("/", "~")) or ".." in PurePath(text).parts


def _is_outside(text: str, folder: Path) -> bool:
    path = _resolve_path(text)
    return path is None or not path.is_relative_to(folder.resolve())


def _path_exists(text: str) -> bool:
    path = _resolve_path(text)
    return path is not None and path.exists()


def _resolve_path(text: str) -> Path | None:
    """Return the target of a path, resolved as in recipes, or None if it is invalid."""
    try:
        path = Path(expand_home(text)).resolve()
        path.exists()
    except (ValueError, OSError, RuntimeError):  # a null byte, too long, a symlink loop
        return None
    return path


def _describe_leaf(leaf: _TextLeaf, name: str) -> str:
    if name == "address" and leaf.text in _WEB_TOOLS:
        return f"the web by the tool {leaf.text}"
    return mask_secrets(leaf.text)


def _make_printable(text: str) -> str:
    """Return a text as one line that is safe to print to a terminal. It is cut only beyond a length
    that no honest command has."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    more = len(line) - 1000
    return f"'{line}'" if more <= 0 else f"'{line[:1000]}' and {more} more letters"


def list_permission_names(requests: Collection[PermissionRequest]) -> list[str]:
    """Return the names of the requested permissions, without repetitions."""
    return list(dict.fromkeys(ask.name for ask in requests))
