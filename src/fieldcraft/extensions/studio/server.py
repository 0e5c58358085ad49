"""Server of the page: data of runs as JSON, downloads, and events about changes."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fieldcraft.extensions.studio.access import AccessGuard
from fieldcraft.extensions.studio.branch_command import (
    BranchCommand,
    BranchRequest,
    label_turns,
    make_branch_options,
    parse_branch_request,
    read_results,
)
from fieldcraft.extensions.studio.downloads import iter_csv_lines, iter_json_lines
from fieldcraft.extensions.studio.follow import LibraryUpdater
from fieldcraft.extensions.studio.payload import (
    add_texts,
    decode_tokens,
    describe_segments,
    load_tokenizer,
    make_rollout_payload,
    make_trajectory_payload,
)
from fieldcraft.extensions.studio.queries import TrajectoryLibrary, TrajectoryQuery, parse_query
from fieldcraft.extensions.studio.rows import ListedTrajectory
from fieldcraft.extensions.studio.run_view import RunView
from fieldcraft.extensions.studio.summaries import find_recipe_differences, summarise_run
from fieldcraft.records.files import replace_nonfinite
from fieldcraft.records.metrics import METRICS
from fieldcraft.tools.server_requests import BodyTooLongError, read_body_bytes
from fieldcraft.types import Trajectory, UserError

STATIC_FOLDER = Path(__file__).parent / "static"
MAX_BODY_BYTES = 2**20  # bytes of a request
MAX_QUESTION_ROLLOUTS = 120  # rollouts of a question on one page
EVENT_POLL_SECONDS = 0.5  # seconds between two checks for events


def create_app(
    runs: Sequence[RunView],
    *,
    token: str | None = None,
    branch_command: BranchCommand | None = None,
) -> Starlette:
    """Return the page as an ASGI application; call its `state.end` before shutdown. With
    `branch_command` users may continue trajectories from the page."""
    api = _PageApi(runs, branch_command)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        api.updater.start()
        yield
        await asyncio.to_thread(api.updater.stop)
        if branch_command is not None:
            await asyncio.to_thread(branch_command.close)

    async def health(request: Request) -> Response:
        return _make_json_response({"status": "ok", "runs": len(runs)})

    async def home(request: Request) -> Response:
        return FileResponse(STATIC_FOLDER / "index.html")

    json_handlers = {
        "runs": api.list_runs,
        "metrics": api.get_metrics,
        "rows": api.get_rows,
        "values": api.get_filter_values,
        "trajectory": api.get_trajectory,
        "question": api.get_question,
        "timeline": api.get_timeline,
        "branches": api.get_branches,
    }
    write_routes = []
    if branch_command is not None:
        write_routes = [
            Route("/api/branch", api.start_branch, methods=["POST"]),
            Route("/api/branch/stop", _make_json_endpoint(api.stop_branch), methods=["POST"]),
        ]
    app = Starlette(
        routes=[
            Route("/", home),
            Route("/health", health),
            *(
                Route(f"/api/{name}", _make_json_endpoint(handler))
                for name, handler in json_handlers.items()
            ),
            Route("/api/export.jsonl", api.export_jsonl),
            Route("/api/export.csv", api.export_csv),
            *write_routes,
            Route("/events", api.stream_events),
            Mount("/static", StaticFiles(directory=STATIC_FOLDER)),
        ],
        middleware=[
            Middleware(
                AccessGuard, token=token, writable_paths={route.path for route in write_routes}
            ),
        ],
        exception_handlers={
            UserError: _handle_user_error,
            BodyTooLongError: _handle_user_error,
            HTTPException: _handle_not_found,
        },
        lifespan=lifespan,
    )
    app.state.end = api.stop_streams
    return app


class _PageApi:
    """Handlers of the page's requests."""

    def __init__(self, runs: Sequence[RunView], branch_command: BranchCommand | None) -> None:
        self.branch_command = branch_command
        self.run_views = {run.name: run for run in runs}
        self.library = TrajectoryLibrary(runs)
        self.updater = LibraryUpdater(self.library)
        self.stopped = False

    def stop_streams(self) -> None:
        """End all event streams."""
        self.stopped = True

    def get_run(self, request: Request) -> RunView:
        name = request.query_params.get("run", "")
        if name not in self.run_views:
            raise UserError(f"there is no run '{name}' on this page.")
        return self.run_views[name]

    def list_runs(self, request: Request) -> Any:
        runs = list(self.run_views.values())
        return {
            "runs": [summarise_run(run) for run in runs],
            "differences": find_recipe_differences(runs),
            "metrics": list(METRICS),
        }

    def get_metrics(self, request: Request) -> Any:
        stage, after = request.query_params.get("stage", ""), _parse_number(request, "after")
        rows = self.get_run(request).read_metrics(stage)
        new = rows[after:]
        keys = dict.fromkeys(key for row in new for key in row)
        columns = {key: [row.get(key) for row in new] for key in keys}
        return {"columns": columns, "total": len(rows)}

    def get_rows(self, request: Request) -> Any:
        query = parse_query(request.query_params)
        offset, limit = _parse_number(request, "offset"), _parse_number(request, "limit", 100)
        return {
            "total": len(self.library.find(query)),
            "revision": self.library.revision,
            "rows": self.library.get_rows(query, offset, limit),
        }

    def get_filter_values(self, request: Request) -> Any:
        return self.library.list_filter_values()

    def get_trajectory(self, request: Request) -> Any:
        run, found = self.get_run(request), self._find_trajectory(request)
        trajectory, rollout = found.read()
        path = run.find_tokenizer()
        tokenizer = None if path is None else load_tokenizer(path)
        authors = run.get_trained_authors(found.file, trajectory)
        segments = add_texts(
            describe_segments(trajectory, rollout, authors), partial(decode_tokens, tokenizer)
        )
        command = run.make_show_command(found.file, found.number)
        payload = make_trajectory_payload(found.origin, trajectory, rollout, segments, command)
        return payload | {"tokenizer": tokenizer is not None}

    def get_question(self, request: Request) -> Any:
        """Return at most `MAX_QUESTION_ROLLOUTS` rollouts of a question, without their tokens."""
        query = TrajectoryQuery((("task", request.query_params.get("task", "")),))
        found = self.library.find(query)
        listed = found[:MAX_QUESTION_ROLLOUTS]
        return {
            "rollouts": [make_rollout_payload(entry.origin, *entry.read()) for entry in listed],
            "left": len(found) - len(listed),
        }

    def get_timeline(self, request: Request) -> Any:
        times = self.get_run(request).read_step_times(request.query_params.get("stage", ""))
        return {"steps": [asdict(step) for step in times]}

    def get_branches(self, request: Request) -> Any:
        """Return the results of the branches of a trajectory, and the options for new ones."""
        run, options, trajectory = self._find_branch_point(request)
        if options is None:
            return {"place": None}
        return {
            "place": shlex.join(["fieldcraft", "branch", *options]),
            "steps": label_turns(trajectory),
            "models": [] if run.folder is None else run.folder.finished_stages(),
            "results": read_results(run, options),
            "may": self.branch_command is not None,
        }

    async def start_branch(self, request: Request) -> Response:
        branch_request = parse_branch_request(await read_body_bytes(request, MAX_BODY_BYTES))
        return await asyncio.to_thread(self._start_branch, request, branch_request)

    def _start_branch(self, request: Request, branch_request: BranchRequest) -> Response:
        assert self.branch_command is not None, "the route is only there with it"
        run, options, _ = self._find_branch_point(request)
        if options is None:
            raise UserError(
                "this trajectory cannot be continued: choose one that a model of the run sampled."
            )
        self.branch_command.start(["branch", *options, *branch_request.make_options(run)])
        return _make_json_response(self.branch_command.state, 202)

    def stop_branch(self, request: Request) -> Any:
        assert self.branch_command is not None, "the route is only there with it"
        self.branch_command.stop()
        return self.branch_command.state

    def _find_branch_point(self, request: Request) -> tuple[RunView, list[str] | None, Trajectory]:
        run = self.get_run(request)
        found = self._find_trajectory(request)
        trajectory, _ = found.read()
        return run, make_branch_options(run, found.file, found.number), trajectory

    def export_jsonl(self, request: Request) -> Response:
        lines = iter_json_lines(self.library.find(parse_query(request.query_params)))
        return _make_download(lines, "trajectories.jsonl", "application/x-ndjson")

    def export_csv(self, request: Request) -> Response:
        lines = iter_csv_lines(self.library.find(parse_query(request.query_params)))
        return _make_download(lines, "trajectories.csv", "text/csv")

    def _find_trajectory(self, request: Request) -> ListedTrajectory:
        """Return a trajectory, identified by its run, part, kind, step and number."""
        names = ("run", "part", "kind", "step", "number")
        given = {name: request.query_params[name] for name in names if name in request.query_params}
        found = self.library.find(parse_query(given))
        if len(found) != 1:
            raise UserError("this trajectory no longer exists: close it, and open another one.")
        return found[0]

    async def stream_events(self, request: Request) -> Response:
        async def iter_events() -> AsyncIterator[str]:
            last = ""
            while not self.stopped:
                branch = None if self.branch_command is None else self.branch_command.state
                state = json.dumps({**self.updater.state, "branch": branch})
                if state != last:
                    last = state
                    yield f"data: {state}\n\n"
                await asyncio.sleep(EVENT_POLL_SECONDS)

        headers = {"Cache-Control": "no-store"}
        return StreamingResponse(iter_events(), media_type="text/event-stream", headers=headers)


def _make_json_endpoint(handler: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """Return an endpoint that runs in a thread and answers with JSON."""

    def endpoint(request: Request) -> Response:
        return _make_json_response(handler(request))

    return endpoint


def _make_json_response(value: Any, status: int = 200) -> Response:
    """Return a value as JSON. Non-finite numbers become null, because browsers reject them in
    JSON."""
    text = json.dumps(replace_nonfinite(value), separators=(",", ":"))
    headers = {"Cache-Control": "no-store"}
    return Response(text, status, headers=headers, media_type="application/json")


def _make_download(lines: Iterator[bytes] | Iterator[str], name: str, media_type: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return StreamingResponse(lines, headers=headers, media_type=media_type)


def _parse_number(request: Request, name: str, default: int = 0) -> int:
    value = request.query_params.get(name, str(default))
    if not value.isdecimal() or len(value) > 12:
        raise UserError(f"{name}={value} is not a number: give one.")
    return int(value)


async def _handle_user_error(request: Request, error: Exception) -> Response:
    return _make_json_response({"error": str(error)}, 422)


async def _handle_not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse("There is nothing at this address: open the page at /.\n", 404)
