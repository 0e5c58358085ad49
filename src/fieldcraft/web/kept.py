"""Answers of the web on disk: a cache that processes share, and runs that are repeated offline."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from pydantic import BaseModel, ConfigDict

from fieldcraft.records.files import make_file
from fieldcraft.records.waits import waiting
from fieldcraft.tools.threads import in_thread
from fieldcraft.types import ToolError, ToolUnavailable, UserError

_FILE = "web.sqlite"
_LOCK_SECONDS = 30.0  # that one process waits while another one writes
_SHOWN = 300  # characters of a request in a message


class Answer(BaseModel):
    """Answer of a server, or why there is none: then `failure` is a sentence.

    `way` are the addresses from the one that was asked to the one that answered; `inside` are those
    of them that are not public and were allowed by name.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", frozen=True)

    status: int = 0
    kind: str = ""  # the header content-type
    content: bytes = b""
    way: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    failure: str = ""
    unavailable: bool = False  # the failure says nothing about what was asked

    def required(self) -> Answer:
        """Return the answer itself. Raises ToolError or ToolUnavailable for a failure."""
        if self.failure:
            raise (ToolUnavailable if self.unavailable else ToolError)(self.failure)
        return self


@dataclass(frozen=True, slots=True)
class Asked:
    """Request, without keys and other headers."""

    method: str
    url: str
    body: Any = None  # of JSON

    @property
    def key(self) -> str:
        text = json.dumps([self.method, self.url, self.body], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        body = "" if self.body is None else f" {json.dumps(self.body, ensure_ascii=False)}"
        text = f"{self.method} {self.url}{body}"
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


Ask = Callable[[], Awaitable[Answer]]


class Keeping(StrEnum):
    """Purpose of a folder of answers."""

    CACHE = "cache"  # answers are used until they are old; failures are not kept
    RECORD = "record"  # the first answer of each request is kept for good, failures too
    REPLAY = "replay"  # nothing but what was recorded


class Kept:
    """Answers in a SQLite file. A connection lives for one use, so that threads and processes can
    share the file, and a replay can read it from a folder that it must not write to."""

    def __init__(self, folder: Path, keeping: Keeping, hours: float) -> None:
        """Take the folder and `hours`, the age up to which a cache uses an answer.

        Raises UserError for a folder that holds no answers, or cannot.
        """
        self._path = folder / _FILE
        self._keeping = keeping
        self._seconds = hours * 3600
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        if keeping is Keeping.REPLAY and not self._path.is_file():
            raise UserError(
                f"{folder} holds no recorded answers: record a run with 'record: {folder}' first."
            )
        try:
            if keeping is not Keeping.REPLAY:
                make_file(self._path)
            with closing(self._connect()) as file, file:
                if keeping is not Keeping.REPLAY:
                    file.execute(
                        "CREATE TABLE IF NOT EXISTS answers"
                        " (key TEXT PRIMARY KEY, asked TEXT, at REAL, answer TEXT)"
                    )
                file.execute("SELECT key, asked, at, answer FROM answers LIMIT 1")
        except (sqlite3.Error, OSError) as error:
            raise UserError(
                f"{self._path} cannot keep answers ({error}): give another folder."
            ) from error

    async def answer(self, asked: Asked, ask: Ask) -> Answer:
        """Return the answer that is kept, else that of `ask`, which is then kept.

        Whoever asks the same at the same time waits for the first one's answer.

        Raises UserError where a replay has no answer.
        """
        async with self._asking.setdefault(asked.key, asyncio.Lock()):
            found = await in_thread(lambda: self._find(asked))
            if found is not None:
                return found
            if self._keeping is Keeping.REPLAY:
                raise UserError(
                    f"{self._path.parent} has no answer to {asked}: record the run anew, or repeat"
                    " it with the settings it was recorded with."
                )
            given = await ask()
            if given.failure and self._keeping is Keeping.CACHE:
                return given
            with waiting("an answer of the web", f"another process that writes to {self._path}"):
                return await in_thread(lambda: self._added(asked, given))

    def _connect(self) -> sqlite3.Connection:
        if self._keeping is Keeping.REPLAY:
            return sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)
        return sqlite3.connect(self._path, timeout=_LOCK_SECONDS)

    @property
    def _oldest(self) -> float:
        return time.time() - self._seconds if self._keeping is Keeping.CACHE else 0.0

    def _find(self, asked: Asked) -> Answer | None:
        with closing(self._connect()) as file:
            row = file.execute(
                "SELECT answer FROM answers WHERE key = ? AND at >= ?", [asked.key, self._oldest]
            ).fetchone()
        return None if row is None else Answer.model_validate_json(row[0])

    def _added(self, asked: Asked, given: Answer) -> Answer:
        """Return the answer that is kept now: another process may have been first."""
        with closing(self._connect()) as file, file:
            file.execute("DELETE FROM answers WHERE key = ? AND at < ?", [asked.key, self._oldest])
            values = [asked.key, str(asked), time.time(), given.model_dump_json()]
            file.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", values)
        return self._find(asked) or given


class NotKept:
    """No folder: every request is asked."""

    async def answer(self, asked: Asked, ask: Ask) -> Answer:
        return await ask()


def open_kept(
    cache: Path | None, cache_hours: float, record: Path | None, replay: Path | None
) -> Kept | NotKept:
    """Open the folder in which the answers of a tool are kept. Raises UserError for more than one
    folder."""
    folders = {Keeping.CACHE: cache, Keeping.RECORD: record, Keeping.REPLAY: replay}
    given = [(keeping, folder) for keeping, folder in folders.items() if folder is not None]
    if len(given) > 1:
        names = " and ".join(f"'{keeping}'" for keeping, _ in given)
        raise UserError(f"a tool of the web keeps its answers in one way: give one of {names}.")
    if not given:
        return NotKept()
    [(keeping, folder)] = given
    return Kept(folder, keeping, cache_hours)
