"""Engines and services that fail: one sentence, other programs go on, and nothing is left."""

import asyncio
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest
from backend_parts import LIMITS
from container_images import list_containers, open_image
from sandbox_parts import cancel_while_starting

from fieldcraft.environments.tool_session import open_session_tools
from fieldcraft.extensions.sandbox.backends import machine_stream, machines
from fieldcraft.extensions.sandbox.backends.factory import open_backend
from fieldcraft.extensions.sandbox.limits import ProgramStatus
from fieldcraft.tools.factory import make_tool
from fieldcraft.types import Task, ToolUnavailableError, UserError
from waiting import wait_until_async

SLEEP = "import time; open('begun', 'x').close(); time.sleep(3600)"
# Commands in place of a container engine: what `run` does; all else succeeds.
ENGINES = {
    "refuses": ("echo 'Error: no space left.' >&2; exit 125", r"\(Error: no space left\)"),
    "is silent": ("exec sleep 3600", "did not answer within 0.5 s"),
    "talks nonsense": ("echo '{\"ready\": 3}'; exec sleep 3600", "something else than results"),
    "never ends a line": ("exec cat /dev/zero", "lines without an end"),
    "dies after its start": ('echo \'{"ready": "3"}\'; read line; exit 137', "has ended"),
}
LOG = """#!/bin/sh
echo "$1" "$2" >> {folder}/calls
case "$1" in
    run) echo $$ > {folder}/process ;;
    rm) kill -9 $(cat {folder}/process); exit 0 ;;
    *) exit 0 ;;
esac
"""


@pytest.fixture
def write_engine(tmp_path, monkeypatch):
    """Return a function that installs a command as podman, and one that reads its calls."""

    def write(body: str) -> None:
        program = tmp_path / "podman"
        program.write_text(LOG.format(folder=tmp_path) + body + "\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return write, lambda: (tmp_path / "calls").read_text().splitlines()


def assert_no_processes(tmp_path) -> None:
    mark = str(tmp_path).encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                assert mark not in file.read()
        except OSError:
            continue


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_that_fails_costs_one_call(kind, write_engine, monkeypatch, tmp_path) -> None:
    write, read_calls = write_engine
    body, message = ENGINES[kind]
    write(body)
    monkeypatch.setattr(machines, "START_TIMEOUT_SECONDS", 0.5 if kind == "is silent" else 300)
    monkeypatch.setattr(machine_stream, "MAX_LINE_BYTES", 2**20)
    backend = open_backend(
        "container", {"image": "x", "engine": "podman"}, LIMITS, None, "this test"
    )
    with pytest.raises(ToolUnavailableError, match=message) as caught:
        asyncio.run(backend.run("print(1)"))
    assert str(caught.value).endswith(".")
    assert str(caught.value).count(". ") == 0
    assert read_calls()[-1] == "rm --force"
    assert_no_processes(tmp_path)


def test_a_container_whose_start_is_cancelled_is_removed(
    write_engine, monkeypatch, tmp_path
) -> None:
    write, read_calls = write_engine
    write("exec sleep 3600")
    backend = open_backend(
        "container", {"image": "x", "engine": "podman"}, LIMITS, None, "this test"
    )
    process = tmp_path / "process"
    asyncio.run(
        cancel_while_starting(
            backend.run("1"), monkeypatch, lambda: process.exists() and process.read_text() != ""
        )
    )
    assert read_calls()[-1] == "rm --force"
    assert_no_processes(tmp_path)


def test_an_engine_that_is_not_there(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"docker: not installed; podman: not installed\)"):
        make_tool("python", {"backend": {"name": "container", "image": "x"}})


def test_an_image_that_is_not_there(monkeypatch, tmp_path) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'Error: No such image: x' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(UserError, match=r"image 'x' \(docker: Error: No such image: x; podman"):
        make_tool("python", {"backend": {"name": "container", "image": "x"}})


def test_a_container_at_a_time_or_more(write_engine) -> None:
    write, _ = write_engine
    write("exit 0")
    with pytest.raises(UserError, match="max_concurrent of a sandbox must be at least 1, not 0"):
        open_backend("container", {"image": "x", "engine": "podman"}, LIMITS, 0, "this test")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "dock"}, "unknown sandbox backend 'dock'"),
        ({"backend": {"image": "x"}}, "'backend' of the tool python has no name"),
        ({"backend": {"name": "container"}}, "'container' needs the setting 'image'"),
        ({"backend": {"name": "e2b", "templat": "x"}}, "did you mean 'template'"),
        ({"backend": "e2b", "url": "http://127.0.0.1:1"}, "a 'url' and a 'backend'"),
        ({"backend": "e2b", "libraries": []}, "'libraries' .* setting of the backend 'local'"),
        ({"backend": {"name": "sandboxfusion", "url": "http://127.0.0.1:1"}, "stateful": True},
         "'sandboxfusion' has no sessions"),
        ({"backend": {"name": "sandboxfusion", "url": "http://127.0.0.1:1"}, "max_concurrent": 2},
         "sets its own concurrency"),
        ({"backend": {"name": "sandboxfusion", "url": "host"}}, "not a url of a server"),
    ],
)  # fmt: skip
def test_mistakes_in_a_recipe(settings, message) -> None:
    with pytest.raises(UserError, match=message):
        make_tool("python", settings)


def test_e2b_without_a_key(monkeypatch) -> None:
    pytest.importorskip("e2b", reason="needs the extra e2b")
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    with pytest.raises(UserError, match="set the environment variable E2B_API_KEY"):
        make_tool("python", {"backend": "e2b"})


def test_e2b_without_its_package(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "e2b", None)
    with pytest.raises(UserError, match=r"pip install 'fieldcraft\[e2b\]'"):
        make_tool("python", {"backend": "e2b"})


def test_a_sandbox_whose_creation_is_cancelled_is_killed(e2b) -> None:
    backend = open_backend("e2b", {}, LIMITS, None, "this test")

    async def story() -> None:
        task = asyncio.create_task(backend.run("1"))
        await wait_until_async(lambda: len(e2b.running) == 1)
        task.cancel()
        await asyncio.sleep(0)
        e2b.answers_creations.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    e2b.answers_creations.clear()
    try:
        asyncio.run(story())
    finally:
        e2b.answers_creations.set()
    assert e2b.running == {}


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "wrong"), (400, "template 'x' not found"), (500, "broken")],
)
def test_a_service_that_refuses_costs_one_call(e2b, status: int, message: str) -> None:
    backend = open_backend("e2b", {}, LIMITS, None, "this test")
    e2b.refusal = (status, message)
    try:
        with pytest.raises(ToolUnavailableError, match=f"E2B starts no sandbox.*{message}"):
            asyncio.run(backend.run("1"))
    finally:
        e2b.refusal = None
    assert asyncio.run(backend.run("print(1)")).stdout == "1\n"


def test_a_machine_that_dies_ends_its_own_call_only(e2b) -> None:
    """Of two sandboxes in use, the service loses the first. The other rollout goes on."""
    backend = open_backend("e2b", {}, LIMITS, None, "this test")
    before = {*e2b.running}

    async def story():
        async with backend.open_session() as first, backend.open_session() as second:
            await first.run("x = 1")
            (lost,) = {*e2b.running} - before
            await second.run("y = 2")
            sleeping = asyncio.create_task(first.run(SLEEP))
            await wait_until_async((e2b.running[lost].folder / "begun").exists)
            e2b.running[lost].kill()
            with pytest.raises(ToolUnavailableError, match=r"^[^.]+( \(.*\))?\.$"):
                await sleeping
            return await second.run("y"), await first.run("'x' in globals()")

    other, anew = asyncio.run(story())
    assert other.value == "2"
    assert (anew.value, anew.restarted) == ("False", True)
    assert {*e2b.running} == before


@pytest.mark.long
def test_a_service_that_dies_ends_its_calls() -> None:
    """Its server stops during a call; the next call finds nothing at its address."""
    pytest.importorskip("e2b", reason="needs the extra e2b")
    from e2b_server import serve_e2b

    async def story(server, stop) -> None:
        async with open_backend("e2b", {}, LIMITS, None, "this test").open_session() as session:
            await session.run("x = 1")
            (machine,) = server.running.values()
            sleeping = asyncio.create_task(session.run(SLEEP))
            await wait_until_async((machine.folder / "begun").exists)
            await asyncio.to_thread(stop)
            with pytest.raises(ToolUnavailableError, match=r"E2B[^\n]*\.$"):
                await sleeping
            with pytest.raises(ToolUnavailableError, match=r"E2B starts no sandbox[^\n]*\.$"):
                await session.run("x")

    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        server = stack.enter_context(serve_e2b(patch))
        asyncio.run(story(server, stack.close))


def test_a_cancelled_call_leaves_no_machine(e2b) -> None:
    backend = open_backend("e2b", {}, LIMITS, None, "this test")

    async def story() -> None:
        calls = [asyncio.create_task(backend.run(SLEEP)) for _ in range(2)]
        await wait_until_async(lambda: sum(bool(m.processes) for m in e2b.running.values()) == 2)
        for call in calls:
            call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} == {asyncio.CancelledError}

    asyncio.run(story())
    assert e2b.running == {}


def test_what_e2b_is_asked_for(e2b) -> None:
    settings = {"backend": {"name": "e2b", "template": "own", "internet": True}, "stateful": True}
    tool = make_tool("python", settings | {"limits": {"wall_seconds": 100}, "max_concurrent": 1})

    async def rollout() -> list[str]:
        async with open_session_tools([tool], Task("1", "?", ["!"]), 600) as ready:
            return [await ready["python"](code=code) for code in ("x = 20", "x + 1")]

    assert asyncio.run(rollout()) == ["(no output)", "21"]
    machine = e2b.ended[-1]
    assert machine.request["templateID"] == "own"
    assert machine.request["allow_internet_access"] is True
    # A call has 100 s and 15 s for its answer, the session 1800 s, and a start 60 s.
    assert machine.timeouts == [1975, 1975]
    assert tool.describe_isolation().layers == ("virtual machine",)


@pytest.mark.long
def test_a_container_that_never_answers_is_removed(engine, monkeypatch) -> None:
    with open_image(engine, "localhost/fieldcraft-test:silent", is_silent=True) as image:
        backend = open_backend(
            "container", {"image": image, "engine": engine}, LIMITS, None, "this test"
        )
        monkeypatch.setattr(machines, "START_TIMEOUT_SECONDS", 10.0)
        with pytest.raises(ToolUnavailableError, match="did not answer within 10 s"):
            asyncio.run(backend.run("print(1)"))
        assert list_containers(engine) == []


@pytest.mark.long
def test_a_container_that_is_killed_ends_its_own_call_only(engine, image) -> None:
    backend = open_backend(
        "container", {"image": image, "engine": engine}, LIMITS, None, "this test"
    )

    async def story():
        sleeping = asyncio.create_task(backend.run(SLEEP))
        await wait_until_async(lambda: list_containers(engine) != [])
        (name,) = list_containers(engine)
        other = await backend.run("print(2)")
        subprocess.run([engine, "kill", name], capture_output=True, check=True)
        with pytest.raises(ToolUnavailableError, match="has ended"):
            await sleeping
        return other

    assert asyncio.run(story()).stdout == "2\n"
    assert list_containers(engine) == []


@pytest.mark.long
def test_memory_of_all_processes_together(engine, image) -> None:
    """The control group of the container counts what no process has alone."""
    backend = open_backend(
        "container", {"image": image, "engine": engine}, LIMITS, None, "this test"
    )
    code = (
        "import os, sys, time\n"
        "for i in range(5):\n"
        "    if os.fork() == 0:\n"
        "        x = b'x' * (150 * 2**20); time.sleep(3); os._exit(0)\n"
        "sys.exit(any([os.wait()[1] for i in range(5)]))"
    )
    run = asyncio.run(backend.run(code))
    assert (run.status, run.exit_code) in [
        (ProgramStatus.MEMORY, None),
        (ProgramStatus.FINISHED, 1),
    ]
