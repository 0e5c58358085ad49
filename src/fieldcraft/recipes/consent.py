"""Consent of the user to what folders of others ask for, by name, once for each file.

It is kept by the hash of what a file holds, in the folder `consent` among the settings of this
user, so a file that has changed asks again. What this user's own runs and exports write is
remembered as it is written: nobody is asked for leave to do what they wrote themselves.
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

from fieldcraft.config.names import suggestion
from fieldcraft.recipes.asks import ASKS, Ask, asks_of, links_out, names_of
from fieldcraft.records.files import write_json
from fieldcraft.records.reading import read_json
from fieldcraft.records.remedies import put_aside
from fieldcraft.types import UserError

_allowed: ContextVar[frozenset[str]] = ContextVar("names that the user allows", default=frozenset())


class ConsentNeeded(UserError):
    """A folder asks for something that its user has not allowed.

    Attributes:
        file: the file that asks, or the folder with links.
        asks: what is not allowed yet.
    """

    def __init__(self, file: Path, digest: str, asks: Sequence[Ask]) -> None:
        names = names_of(asks)
        first, more = asks[0], len(asks) - 1
        super().__init__(
            f"{file} would {first} ('{first.key}'{f', and {more} more' if more else ''}), and a"
            f" folder is data until you allow that: if you trust it, add --allow {','.join(names)},"
            f" or allow={names} in Python."
        )
        self.file, self.digest, self.asks = file, digest, list(asks)

    def give(self) -> None:
        """Remember that the user allows all of it. Raises UserError where that cannot be kept."""
        _keep_given(self.file, self.digest, names_of(self.asks))


@contextmanager
def allowing(names: Collection[str]) -> Iterator[None]:
    """Allow, and remember, whatever is asked for in the block by these names; `mcp,address` are
    two. Raises UserError for a name that allows nothing."""
    each = [name for given in names for name in given.split(",")]
    for name in each:
        if name not in ASKS:
            raise UserError(f"nothing is allowed by the name '{name}'; {suggestion(name, ASKS)}")
    before = _allowed.set(_allowed.get().union(each))
    try:
        yield
    finally:
        _allowed.reset(before)


def require_consent(file: Path, data: Mapping[str, Any], asks: Sequence[Ask] | None = None) -> None:
    """Raise ConsentNeeded for what the contents of a file ask for, unless the user allows it.
    `asks` are those that matter here; None: all of them."""
    found = asks_of(data, file.parent) if asks is None else asks
    _require(file, digest_of(data), found)


def require_consent_to_links(folder: Path, data: Mapping[str, Any]) -> None:
    """Raise ConsentNeeded likewise for links in a folder that lead out of it; `data` is its file,
    which may name their targets."""
    links = links_out(folder, data)
    _require(folder, digest_of([[link.key, link.detail] for link in links]), links)


def remember(file: Path, data: Mapping[str, Any]) -> None:
    """Allow what this user's own command writes into a file. Where that cannot be kept, the file
    asks when it is read again, which is no reason to stop a run."""
    if asks_of(data, file.parent):
        with suppress(OSError):
            _keep(file, digest_of(data), list(ASKS))


def digest_of(data: Any) -> str:
    """Return the hash of the contents of a file: of the values themselves, so that consent is to
    exactly what is used."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _require(file: Path, digest: str, asks: Sequence[Ask]) -> None:
    if not asks:
        return
    given = _given(digest)
    missing = [ask for ask in asks if ask.name not in given]
    if not missing:
        return
    refused = [ask for ask in missing if ask.name not in _allowed.get()]
    if refused:
        raise ConsentNeeded(file, digest, refused)
    _keep_given(file, digest, names_of(missing))


class _Record(BaseModel):
    file: str  # for people: where it was
    names: list[str]


def _place(digest: str) -> Path:
    settings = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(settings, "fieldcraft", "consent", f"{digest}.json")


def _given(digest: str) -> list[str]:
    place = _place(digest)
    if not place.exists():
        return []
    record: dict[str, Any] = read_json(place, _Record, f"{put_aside(place)}, to be asked again")
    names: list[str] = record["names"]
    return names


def _keep_given(file: Path, digest: str, names: Sequence[str]) -> None:
    try:
        _keep(file, digest, names)
    except OSError as error:
        raise UserError(
            f"consent cannot be kept in {_place(digest).parent} ({error.strerror}): set"
            " XDG_CONFIG_HOME to a folder that can be written."
        ) from error


def _keep(file: Path, digest: str, names: Sequence[str]) -> None:
    record = _Record(file=str(file.absolute()), names=sorted({*_given(digest), *names}))
    write_json(_place(digest), record.model_dump())
