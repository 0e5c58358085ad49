"""Consent of the user to permission requests of third-party folders, stored per file.

Consent is stored by the hash of the file contents, in the folder `consent` in the user's settings,
so a changed file requires consent again. For files that the user's own runs and exports write,
consent is stored when they are written: users are not asked about their own files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fieldcraft.config.names import format_short, suggest_name
from fieldcraft.recipes.permissions import (
    PERMISSIONS,
    PermissionRequest,
    find_escaping_links,
    find_permission_requests,
    list_permission_names,
)
from fieldcraft.records.files import write_json
from fieldcraft.records.locks import lock_shared_file
from fieldcraft.records.reading import advise_renaming, read_json
from fieldcraft.types import UserError

_allowed_names: ContextVar[frozenset[str]] = ContextVar(
    "names that the user allows", default=frozenset()
)


class ConsentRequiredError(UserError):
    """Error for a folder that requests something the user has not allowed.

    Attributes:
        file: the file with the requests, or the folder with links.
        requests: requests that are not allowed yet.
    """

    def __init__(self, file: Path, digest: str, requests: Sequence[PermissionRequest]) -> None:
        names = list_permission_names(requests)
        first, more = requests[0], len(requests) - 1
        super().__init__(
            f"{file} would {first} ('{first.key}'{f', and {more} more' if more else ''}), and a"
            f" folder is data until you allow that: if you trust it, add --allow {','.join(names)},"
            f" or allow={names} in Python."
        )
        self.file, self.digest, self.requests = file, digest, list(requests)

    def grant(self) -> None:
        """Store consent to all requests. Raises UserError if it cannot be stored."""
        _store_granted(self.file, self.digest, list_permission_names(self.requests))


@contextmanager
def allow_permissions(names: Collection[str]) -> Iterator[None]:
    """Allow, and store consent to, all requests in the block with these names; `mcp,address` counts
    as two. Raises UserError for an unknown name, and for anything but a collection of texts."""
    is_collection = isinstance(names, Collection) and not isinstance(names, str | bytes)
    if not is_collection or not all(isinstance(group, str) for group in names):
        raise UserError(f"allow is {format_short(names)}: give a list of names, as in ['mcp'].")
    requested = [name for group in names for name in group.split(",")]
    for name in requested:
        if name not in PERMISSIONS:
            raise UserError(
                f"nothing is allowed by the name '{name}'; {suggest_name(name, PERMISSIONS)}"
            )
    before = _allowed_names.set(_allowed_names.get().union(requested))
    try:
        yield
    finally:
        _allowed_names.reset(before)


def require_consent(
    file: Path, data: Mapping[str, Any], requests: Sequence[PermissionRequest] | None = None
) -> None:
    """Raise ConsentRequiredError for requests in the contents of a file that the user has not
    allowed. `requests` are the relevant ones; None: all of them."""
    needed = find_permission_requests(data, file.parent) if requests is None else requests
    _require_granted(file, hash_contents(data), needed)


def require_consent_to_links(folder: Path, data: Mapping[str, Any]) -> None:
    """Raise ConsentRequiredError for links in a folder that lead out of it, unless allowed; `data`
    is the contents of its file, which may name their targets."""
    links = find_escaping_links(folder, data)
    _require_granted(folder, hash_contents([[link.key, link.detail] for link in links]), links)


def record_own_consent(file: Path, data: Mapping[str, Any]) -> None:
    """Store consent to a file written by the user's own command. If this fails, the file requires
    consent when it is read again, which is no reason to stop a run."""
    if find_permission_requests(data, file.parent):
        with suppress(OSError):
            _write_granted(file, hash_contents(data), list(PERMISSIONS))


def hash_contents(data: Any) -> str:
    """Return the hash of the contents of a file: of the parsed values, so that consent applies to
    exactly the values in use."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _require_granted(file: Path, digest: str, requests: Sequence[PermissionRequest]) -> None:
    if not requests:
        return
    granted = _read_granted(digest)
    missing = [ask for ask in requests if ask.name not in granted]
    if not missing:
        return
    denied = [ask for ask in missing if ask.name not in _allowed_names.get()]
    if denied:
        raise ConsentRequiredError(file, digest, denied)
    _store_granted(file, digest, list_permission_names(missing))


class _ConsentRecord(BaseModel):
    file: str  # informational: path of the file
    names: list[str]


def _get_consent_file(digest: str) -> Path:
    config_root = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config_root, "fieldcraft", "consent", f"{digest}.json")


def _read_granted(digest: str) -> list[str]:
    file = _get_consent_file(digest)
    if not file.exists():
        return []
    record: dict[str, Any] = read_json(
        file, _ConsentRecord, f"{advise_renaming(file)}, to be asked again"
    )
    names: list[str] = record["names"]
    return names


def _store_granted(file: Path, digest: str, names: Sequence[str]) -> None:
    try:
        _write_granted(file, digest, names)
    except OSError as error:
        raise UserError(
            f"consent cannot be stored in {_get_consent_file(digest).parent} ({error.strerror}):"
            " set XDG_CONFIG_HOME to a writable folder."
        ) from error


def _write_granted(file: Path, digest: str, names: Sequence[str]) -> None:
    consent_file = _get_consent_file(digest)
    with lock_shared_file(consent_file):
        record = _ConsentRecord(
            file=str(file.absolute()), names=sorted({*_read_granted(digest), *names})
        )
        write_json(consent_file, record.model_dump())
