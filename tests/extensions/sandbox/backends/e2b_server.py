"""Server on loopback with the part of E2B's interface that its library uses to run commands.

Its "virtual machines" are processes of this machine, so it isolates nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from fieldcraft.tools.serving import serve_in_thread

pytest.importorskip("e2b", reason="needs the extra e2b")
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.envd.process import process_connect, process_pb
from protobuf import Oneof

API_KEY = "e2b_0123456789abcdef"
ENVD_VERSION = "0.6.2"


@dataclass
class FakeMachine:
    """A sandbox: its folder and processes."""

    request: dict
    folder: Path
    timeouts: list[int]
    processes: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)

    def kill(self) -> None:
        """End all processes, also those that work in the folder in sessions of their own."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if Path(os.readlink(f"/proc/{name}/cwd")).is_relative_to(self.folder):
                    os.kill(int(name), signal.SIGKILL)


class FakeE2b(process_connect.Process):
    """State of the server: running sandboxes, those that ended, and which requests fail."""

    def __init__(self) -> None:
        self.running: dict[str, FakeMachine] = {}
        self.ended: list[FakeMachine] = []
        self.refusal: tuple[int, str] | None = None  # status and message of the next creations
        self.answers_creations = Event()  # which it carries out at once
        self.answers_creations.set()
        self.app = Starlette(
            routes=[
                Route("/v2/sandboxes", self._create, methods=["POST"]),
                Route("/sandboxes/{id}", self._delete, methods=["DELETE"]),
                Route("/sandboxes/{id}/timeout", self._set_timeout, methods=["POST"]),
                Route("/health", self._health),
                Mount("/", process_connect.ProcessASGIApplication(self)),
            ]
        )

    # -- the service

    async def _create(self, request: Request) -> Response:
        if request.headers.get("x-api-key") != API_KEY:
            return JSONResponse({"code": 401, "message": "wrong key"}, 401)
        if self.refusal is not None:
            status, message = self.refusal
            return JSONResponse({"code": status, "message": message}, status)
        body = await request.json()
        name = f"i{len(self.running) + len(self.ended)}"
        folder = Path(tempfile.mkdtemp(prefix="fake-e2b-"))
        self.running[name] = FakeMachine(body, folder, [body["timeout"]])
        await asyncio.to_thread(self.answers_creations.wait)
        return JSONResponse(
            {
                "templateID": body["templateID"],
                "sandboxID": name,
                "clientID": "c",
                "envdVersion": ENVD_VERSION,
                "envdAccessToken": "token",
            },
            201,
        )

    async def _delete(self, request: Request) -> Response:
        machine = self.running.pop(request.path_params["id"], None)
        if machine is None:
            return JSONResponse({"code": 404, "message": "no such sandbox"}, 404)
        machine.kill()
        for process in machine.processes.values():
            await process.wait()
        shutil.rmtree(machine.folder)
        self.ended.append(machine)
        return Response(status_code=204)

    async def _set_timeout(self, request: Request) -> Response:
        machine = self.running[request.path_params["id"]]
        machine.timeouts.append((await request.json())["timeout"])
        return Response(status_code=204)

    async def _health(self, request: Request) -> Response:
        known = request.headers.get("e2b-sandbox-id") in self.running
        return Response(status_code=204 if known else 502)

    # -- inside a sandbox

    def _find(self, context) -> FakeMachine:
        headers = context.request_headers
        machine = self.running.get(headers.get("e2b-sandbox-id"))
        if machine is None or headers.get("x-access-token") != "token":
            raise ConnectError(Code.NOT_FOUND, "sandbox not found")
        return machine

    async def start(self, request, context) -> AsyncIterator[process_pb.StartResponse]:
        machine = self._find(context)
        process = await asyncio.create_subprocess_exec(
            request.process.cmd,
            *request.process.args,
            cwd=machine.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(machine.folder)},
            stdin=asyncio.subprocess.PIPE if request.stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        machine.processes[process.pid] = process
        try:
            event = process_pb.ProcessEvent.StartEvent(pid=process.pid)
            yield _make_event(Oneof("start", event))
            while data := await process.stdout.read(10_000):
                event = process_pb.ProcessEvent.DataEvent(output=Oneof("stdout", data))
                yield _make_event(Oneof("data", event))
            code = await process.wait()
        finally:
            # unread output would keep its pipes open, and `Process` itself does not close them
            process._transport.close()
        end = process_pb.ProcessEvent.EndEvent(exit_code=code, exited=True, status=f"exit {code}")
        yield _make_event(Oneof("end", end))

    async def send_input(self, request, context) -> process_pb.SendInputResponse:
        process = self._find(context).processes[request.process.selector.value]
        try:
            process.stdin.write(request.input.input.value)
            await process.stdin.drain()
        except ConnectionError as error:
            raise ConnectError(Code.FAILED_PRECONDITION, "the process has ended") from error
        return process_pb.SendInputResponse()


def _make_event(event: Oneof) -> process_pb.StartResponse:
    return process_pb.StartResponse(event=process_pb.ProcessEvent(event=event))


@contextlib.contextmanager
def serve_e2b(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeE2b]:
    """Serve E2B on loopback, and let its library in this process use it."""
    server = FakeE2b()
    with serve_in_thread(server.app) as url:
        monkeypatch.setenv("E2B_API_URL", url)
        monkeypatch.setenv("E2B_SANDBOX_URL", url)
        monkeypatch.setenv("E2B_HTTP_VERSION", "1.1")
        monkeypatch.setenv("E2B_API_KEY", API_KEY)
        yield server
    for machine in server.running.values():
        machine.kill()
        shutil.rmtree(machine.folder)
