"""The page's server: what is in runs as JSON, downloads, and an event when something changes."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fieldcraft.records.files import finite_or_null
from fieldcraft.tools.bodies import BodyTooLong, body_of
from fieldcraft.types import Trajectory, UserError
from fieldcraft.view.access import Guard
from fieldcraft.view.branches import Sampling, Wish, parse_wish, place_of, results, steps_of
from fieldcraft.view.details import brief, details, read
from fieldcraft.view.exports import csv_lines, json_lines
from fieldcraft.view.follow import Follower
from fieldcraft.view.index import Index
from fieldcraft.view.queries import Library, Query, parse_query
from fieldcraft.view.summaries import differences, summary
from fieldcraft.view.viewed import Viewed

STATIC = Path(__file__).parent / "static"
MOST_BODY = 2**20  # bytes of a wish
MOST_BESIDE = 120  # rollouts of a question on one page
TOLD = 0.5  # seconds between two looks for something to tell a page


def create_app(
    runs: Sequence[Viewed],
    index: Index,
    *,
    token: str | None = None,
    sampling: Sampling | None = None,
) -> Starlette:
    """Return the page as an ASGI application; call its `state.end` before it ends. With `sampling`
    readers may have trajectories continued."""
    page = _Page(runs, index, sampling)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        page.follower.start()
        yield
        await asyncio.to_thread(page.follower.stop)
        if sampling is not None:
            await asyncio.to_thread(sampling.close)

    async def health(request: Request) -> Response:
        return _json({"status": "ok", "runs": len(runs)})

    async def home(request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    answers = {
        "runs": page.runs_now,
        "metrics": page.metrics,
        "rows": page.rows,
        "values": page.values,
        "trajectory": page.trajectory,
        "question": page.question,
        "timeline": page.timeline,
        "branches": page.branches,
    }
    writing = []
    if sampling is not None:
        writing = [
            Route("/api/branch", page.branch, methods=["POST"]),
            Route("/api/branch/stop", _answer(page.stop_branch), methods=["POST"]),
        ]
    app = Starlette(
        routes=[
            Route("/", home),
            Route("/health", health),
            *(Route(f"/api/{name}", _answer(make)) for name, make in answers.items()),
            Route("/api/export.jsonl", page.export_jsonl),
            Route("/api/export.csv", page.export_csv),
            *writing,
            Route("/events", page.events),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[
            Middleware(Guard, token=token, writable={route.path for route in writing}),
        ],
        exception_handlers={UserError: _mistake, BodyTooLong: _mistake, HTTPException: _missing},
        lifespan=lifespan,
    )
    app.state.end = page.end
    return app


class _Page:
    """The answers to what the page asks."""

    def __init__(self, runs: Sequence[Viewed], index: Index, sampling: Sampling | None) -> None:
        self.sampling = sampling
        self.viewed = {run.name: run for run in runs}
        self.library = Library(runs, index)
        self.follower = Follower(self.library, index)
        self.ended = False

    def end(self) -> None:
        """End the streams of events."""
        self.ended = True

    def run(self, request: Request) -> Viewed:
        name = request.query_params.get("run", "")
        if name not in self.viewed:
            raise UserError(f"there is no run '{name}' on this page.")
        return self.viewed[name]

    def runs_now(self, request: Request) -> Any:
        runs = list(self.viewed.values())
        return {"runs": [summary(run) for run in runs], "differences": differences(runs)}

    def metrics(self, request: Request) -> Any:
        stage, after = request.query_params.get("stage", ""), _number(request, "after")
        rows = self.run(request).metrics(stage)
        new = rows[after:]
        keys = dict.fromkeys(key for row in new for key in row)
        columns = {key: [row.get(key) for row in new] for key in keys}
        return {"columns": columns, "total": len(rows)}

    def rows(self, request: Request) -> Any:
        query = parse_query(request.query_params)
        offset, limit = _number(request, "offset"), _number(request, "limit", 100)
        return {
            "total": self.library.count(query),
            "revision": self.library.revision,
            "rows": self.library.rows(query, offset, limit),
        }

    def values(self, request: Request) -> Any:
        return self.library.values()

    def trajectory(self, request: Request) -> Any:
        [found] = self.library.lines(self._place(request))
        return details(self.run(request), *found)

    def question(self, request: Request) -> Any:
        """Return all rollouts of a question, without their tokens: at most `MOST_BESIDE`."""
        ids = self.library.ids(Query((("task", request.query_params.get("task", "")),)))
        shown = ids[:MOST_BESIDE]
        rollouts = [
            row | brief(file, number, *read(file, number, line))
            for row, (file, number, line) in zip(
                self.library.rows_of(shown), self.library.lines(shown), strict=True
            )
        ]
        return {"rollouts": rollouts, "left": len(ids) - len(shown)}

    def timeline(self, request: Request) -> Any:
        times = self.run(request).times(request.query_params.get("stage", ""))
        return {"steps": [asdict(step) for step in times]}

    def branches(self, request: Request) -> Any:
        """Return the results of the branches of a trajectory, and what else can be asked for."""
        run, place, trajectory = self._branching(request)
        if place is None:
            return {"place": None}
        return {
            "place": shlex.join(["fieldcraft", "branch", *place]),
            "steps": steps_of(trajectory),
            "models": [] if run.folder is None else run.folder.finished_stages(),
            "results": results(run, place),
            "may": self.sampling is not None,
        }

    async def branch(self, request: Request) -> Response:
        wish = parse_wish(await body_of(request, MOST_BODY))
        return await asyncio.to_thread(self._branch, request, wish)

    def _branch(self, request: Request, wish: Wish) -> Response:
        assert self.sampling is not None, "the route is only there with it"
        run, place, _ = self._branching(request)
        if place is None:
            raise UserError("nothing can go on from this trajectory: choose one of a run's models.")
        self.sampling.start(["branch", *place, *wish.options(run)])
        return _json(self.sampling.state, 202)

    def stop_branch(self, request: Request) -> Any:
        assert self.sampling is not None, "the route is only there with it"
        self.sampling.stop()
        return self.sampling.state

    def _branching(self, request: Request) -> tuple[Viewed, list[str] | None, Trajectory]:
        run = self.run(request)
        [(file, number, line)] = self.library.lines(self._place(request))
        trajectory, _ = read(file, number, line)
        return run, place_of(run, file, number), trajectory

    def export_jsonl(self, request: Request) -> Response:
        lines = json_lines(self.library, self.library.ids(parse_query(request.query_params)))
        return _download(lines, "trajectories.jsonl", "application/x-ndjson")

    def export_csv(self, request: Request) -> Response:
        lines = csv_lines(self.library, self.library.ids(parse_query(request.query_params)))
        return _download(lines, "trajectories.csv", "text/csv")

    def _place(self, request: Request) -> Sequence[int]:
        """Return the row of a trajectory, named by its run, part, kind, step and number."""
        names = ("run", "part", "kind", "step", "number")
        given = {name: request.query_params[name] for name in names if name in request.query_params}
        found = self.library.ids(parse_query(given))
        if len(found) != 1:
            raise UserError("there is no such trajectory any more: close it, and open another.")
        return found

    async def events(self, request: Request) -> Response:
        async def told() -> AsyncIterator[str]:
            last = ""
            while not self.ended:
                branch = None if self.sampling is None else self.sampling.state
                state = json.dumps({**self.follower.state, "branch": branch})
                if state != last:
                    last = state
                    yield f"data: {state}\n\n"
                await asyncio.sleep(TOLD)

        headers = {"Cache-Control": "no-store"}
        return StreamingResponse(told(), media_type="text/event-stream", headers=headers)


def _answer(make: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """Return an endpoint that runs in a thread and answers with JSON."""

    def endpoint(request: Request) -> Response:
        return _json(make(request))

    return endpoint


def _json(value: Any, status: int = 200) -> Response:
    """Return a value as JSON; a number that is not finite becomes null, as browsers read no other
    JSON."""
    text = json.dumps(finite_or_null(value), separators=(",", ":"))
    headers = {"Cache-Control": "no-store"}
    return Response(text, status, headers=headers, media_type="application/json")


def _download(lines: Iterator[bytes] | Iterator[str], name: str, kind: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return StreamingResponse(lines, headers=headers, media_type=kind)


def _number(request: Request, name: str, default: int = 0) -> int:
    value = request.query_params.get(name, str(default))
    if not value.isdecimal() or len(value) > 12:
        raise UserError(f"{name}={value} is not a number: give one.")
    return int(value)


async def _mistake(request: Request, error: Exception) -> Response:
    return _json({"error": str(error)}, 422)


async def _missing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse("There is nothing at this address: open the page at /.\n", 404)
