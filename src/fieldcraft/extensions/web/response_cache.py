"""Web responses on disk: a cache shared by processes, and recordings for offline replay."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from pydantic import BaseModel, ConfigDict

from fieldcraft.records.files import make_file
from fieldcraft.records.shared_database import SharedDatabase
from fieldcraft.records.waits import report_wait
from fieldcraft.tools.threads import run_in_thread
from fieldcraft.types import ToolError, ToolUnavailableError, UserError

_DATABASE_NAME = "web.sqlite"
_MAX_MESSAGE_CHARACTERS = 300  # characters of a request in a message


class CachedResponse(BaseModel):
    """Response of a server, or a failure; then `failure` is a sentence.

    `way` has the URLs from the requested one to the final one. `inside` has the non-public ones
    among them, which were allowed by name.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", frozen=True)

    status: int = 0
    kind: str = ""  # header content-type
    content: bytes = b""
    way: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    failure: str = ""
    unavailable: bool = False  # the failure was not caused by the request

    def raise_for_failure(self) -> CachedResponse:
        """Return the response itself. Raises ToolError or ToolUnavailableError for a failure."""
        if self.failure:
            raise (ToolUnavailableError if self.unavailable else ToolError)(self.failure)
        return self


@dataclass(frozen=True, slots=True)
class RequestKey:
    """Request without its headers, such as API keys."""

    method: str
    url: str
    body: Any = None  # JSON

    @property
    def key(self) -> str:
        text = json.dumps([self.method, self.url, self.body], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        body = "" if self.body is None else f" {json.dumps(self.body, ensure_ascii=False)}"
        text = f"{self.method} {self.url}{body}"
        return (
            text
            if len(text) <= _MAX_MESSAGE_CHARACTERS
            else f"{text[:_MAX_MESSAGE_CHARACTERS]} ..."
        )


FetchResponse = Callable[[], Awaitable[CachedResponse]]


class CacheMode(StrEnum):
    """Purpose of a folder of responses."""

    CACHE = "cache"  # responses are used until they expire; failures are not stored
    RECORD = "record"  # the first response to each request is stored permanently, also failures
    REPLAY = "replay"  # only recorded responses are used


class ResponseCache:
    """Responses in a SQLite file. Each use opens a new connection, so that threads and processes
    can share the file, and a replay can read it from a read-only folder."""

    def __init__(self, folder: Path, mode: CacheMode, hours: float) -> None:
        """Open a folder. `hours` is the maximum age of a cached response.

        Raises UserError if a replay has no responses, or the folder is unusable.
        """
        self._mode = mode
        path = folder / _DATABASE_NAME
        self._file = SharedDatabase(
            path,
            fault="cannot store answers",
            remedy="give another folder, or end other processes that use it",
            read_only=mode is CacheMode.REPLAY,
        )
        self._seconds = hours * 3600
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        if mode is CacheMode.REPLAY and not path.is_file():
            raise UserError(
                f"{folder} contains no recorded answers: first record a run with"
                f" 'record: {folder}'."
            )
        if mode is not CacheMode.REPLAY:
            with self._file.raise_errors():
                make_file(path)
            with self._file.write() as file:
                file.execute(
                    "CREATE TABLE IF NOT EXISTS answers"
                    " (key TEXT PRIMARY KEY, asked TEXT, at REAL, answer TEXT)"
                )
        with self._file.read() as file:
            file.execute("SELECT key, asked, at, answer FROM answers LIMIT 1")

    async def get_or_fetch(self, request_key: RequestKey, fetch: FetchResponse) -> CachedResponse:
        """Return the stored response, else the result of `fetch`, which is then stored.

        Concurrent identical requests wait for the response of the first one.

        Raises UserError if a replay has no response, or the file cannot be read or written.
        """
        async with self._locks.setdefault(request_key.key, asyncio.Lock()):
            cached = await run_in_thread(lambda: self._find(request_key))
            if cached is not None:
                return cached
            if self._mode is CacheMode.REPLAY:
                raise UserError(
                    f"{self._file.path.parent} has no answer to {request_key}: record the run"
                    " again, or repeat it with the settings of the recording."
                )
            response = await fetch()
            if response.failure and self._mode is CacheMode.CACHE:
                return response
            with report_wait(
                "an answer of the web", f"another process that writes to {self._file.path}"
            ):
                return await run_in_thread(lambda: self._insert(request_key, response))

    @property
    def _oldest_timestamp(self) -> float:
        return time.time() - self._seconds if self._mode is CacheMode.CACHE else 0.0

    def _find(self, request_key: RequestKey) -> CachedResponse | None:
        with self._file.read() as file:
            row = file.execute(
                "SELECT answer FROM answers WHERE key = ? AND at >= ?",
                [request_key.key, self._oldest_timestamp],
            ).fetchone()
        return None if row is None else CachedResponse.model_validate_json(row[0])

    def _insert(self, request_key: RequestKey, response: CachedResponse) -> CachedResponse:
        """Store a response, and return the stored one: another process may have been first."""
        with self._file.write() as file:
            file.execute(
                "DELETE FROM answers WHERE key = ? AND at < ?",
                [request_key.key, self._oldest_timestamp],
            )
            values = [request_key.key, str(request_key), time.time(), response.model_dump_json()]
            file.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", values)
        return self._find(request_key) or response


class NoCache:
    """Replacement of `ResponseCache` without a folder: every request is sent."""

    async def get_or_fetch(self, request_key: RequestKey, fetch: FetchResponse) -> CachedResponse:
        return await fetch()


def open_response_cache(
    cache: Path | None, cache_hours: float, record: Path | None, replay: Path | None
) -> ResponseCache | NoCache:
    """Open the folder with the responses of a tool. Raises UserError for more than one folder."""
    folders = {CacheMode.CACHE: cache, CacheMode.RECORD: record, CacheMode.REPLAY: replay}
    chosen = [(mode, folder) for mode, folder in folders.items() if folder is not None]
    if len(chosen) > 1:
        names = " and ".join(f"'{mode}'" for mode, _ in chosen)
        raise UserError(f"a web tool has one response cache: set only one of {names}.")
    if not chosen:
        return NoCache()
    [(mode, folder)] = chosen
    return ResponseCache(folder, mode, cache_hours)
