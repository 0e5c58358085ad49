"""The same behaviours and escapes of commands in every backend that this machine has."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from backend_parts import LIMITS
from command_parts import COMMAND_BACKENDS, make_request, open_commands, run_commands
from container_images import list_containers
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from test_backends import OF_THE_HOST
from test_escapes import ATTEMPTS, SECRET, host  # noqa: F401 - a fixture
from test_machine_failures import assert_no_processes, write_engine  # noqa: F401 - a fixture

from fieldcraft.extensions.sandbox.backends.base import CommandError, CommandOutcome
from fieldcraft.extensions.sandbox.backends.factory import open_backend
from fieldcraft.extensions.sandbox.limits import MachineLimits
from fieldcraft.tools.serving import serve_in_thread
from waiting import wait_until, wait_until_async

FILES = {"bin/agent.sh": (b"#!/bin/sh\necho ran $1\n", 0o755), "data.txt": (b"content\n", 0o644)}
# (line, exit code, output, end of the standard error, files)
COMMANDS = {
    "streams": ("echo a; echo b >&2", 0, b"a\n", b"b\n", {}),
    "input": ('read line; echo "$line!"', 0, b"in!\n", b"", {}),
    "results": (
        "echo Oslo > answer.txt; echo 0.5 > reward.txt; echo x > other.txt",
        *(0, b"", b"", {"answer.txt": b"Oslo\n", "reward.txt": b"0.5\n"}),
    ),
    "status": ("echo why >&2; exit 3", 3, b"", b"why\n", {}),
    "a signal": ("kill -9 $$", -9, b"", b"", {}),
    "its task": ('read line < "$FIELDCRAFT_TASK"; echo "$line"', 0, b'{"id": 1}\n', b"", {}),
    "files": ("./bin/agent.sh x; read a < data.txt; echo $a", 0, b"ran x\ncontent\n", b"", {}),
    "folders": ('echo x > "$HOME/x" && echo x > "$TMPDIR/x" && echo ok', 0, b"ok\n", b"", {}),
    "a process that it leaves": (
        "python3 -c 'import os, time; os.setsid(); time.sleep(1000)' & echo done",
        *(0, b"done\n", b"", {}),
    ),
    "bytes": (r"printf '\377\000\n'", 0, b"\xff\x00\n", b"", {}),
}


@pytest.fixture(params=COMMAND_BACKENDS)
def backend(request):
    return open_commands(request.param, request)


@pytest.fixture
def machines(request):
    """Backends whose commands have machines of their own."""
    return open_commands(request.param, request)


OF_MACHINES = pytest.mark.parametrize("machines", COMMAND_BACKENDS[1:], indirect=True)
IN_CONTAINERS = pytest.mark.parametrize("machines", COMMAND_BACKENDS[1:2], indirect=True)


def python(code: str) -> str:
    """Return a command line for a program without double quotes, dollar signs and backslashes."""
    text = textwrap.dedent(code)
    assert not {'"', "$", "\\", "`"} & {*text}
    return f'python3 -c "{text}"'


def run_one(backend, request) -> CommandOutcome:
    [result] = run_commands(backend, request)
    if isinstance(result, BaseException):
        raise result
    return result


def test_commands(backend) -> None:
    requests = [
        make_request(line, files=FILES, task=b'{"id": 1}\n') for line, *_ in COMMANDS.values()
    ]
    for (name, (_, status, output, errors, files)), result in zip(
        COMMANDS.items(), run_commands(backend, *requests), strict=True
    ):
        assert result == CommandOutcome(
            exit_code=status, output=output, error_tail=errors, files=files
        ), name


FAULTS = {
    python("import os; os.symlink('/etc/passwd', 'answer.txt')"): "answer.txt cannot be read",
    python("import os; os.mkfifo('answer.txt')"): "answer.txt is not a file",
    python("import os; os.mkdir('reward.txt')"): "reward.txt is not a file",
    python("open('answer.txt', 'wb').write(bytes(1048577))"): "has more than 1048576 bytes",
    "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done": "printed more than 1048576 bytes",
}


def test_what_is_no_result_costs_its_own_command(backend) -> None:
    *faults, other = run_commands(backend, *map(make_request, FAULTS), make_request("echo fine"))
    for message, error in zip(FAULTS.values(), faults, strict=True):
        assert isinstance(error, CommandError)
        assert message in str(error)
    assert other.output == b"fine\n"


def test_endless_errors_keep_their_end(backend) -> None:
    line = python("import sys; sys.stderr.write('a' * 3000000 + 'bye')")
    result = run_one(backend, make_request(line))
    assert result.exit_code == 0
    assert result.error_tail.endswith(b"aaabye")
    assert len(result.error_tail) <= 1024


# -- the service


async def answer(request: Request) -> Response:
    return Response((await request.body())[::-1])


async def stream(request: Request) -> Response:
    async def events() -> AsyncIterator[bytes]:
        for number in range(20):
            yield b"%d," % number
            await asyncio.sleep(0)

    return StreamingResponse(events())


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    app = Starlette(
        routes=[
            Route("/rollout/v1/answer", answer, methods=["POST"]),
            Route("/rollout/v1/stream", stream),
        ]
    )
    with serve_in_thread(app) as url:
        yield f"{url}/rollout/v1"


CLIENT = python("""
    import os, threading, urllib.error, urllib.request
    url = os.environ['SERVICE']
    def ask(path, data=None):
        return urllib.request.urlopen(url + path, data).read()
    large = os.urandom(3000000)
    assert ask('/answer', large) == large[::-1]
    print(ask('/stream').decode())
    found = {}
    def ask_thread(i):
        found[i] = ask('/answer', bytes([65 + i, 66]))
    threads = [threading.Thread(target=ask_thread, args=(i,)) for i in range(20)]
    for t in threads: t.start()
    for t in threads: t.join()
    print([found[i].decode() for i in range(20)])
    try: ask('/nothing')
    except urllib.error.HTTPError as error: print(error.code)
""")


def test_a_command_calls_the_service(backend, service: str) -> None:
    """Also with large bodies, and many requests at the same time."""
    result = run_one(backend, make_request(CLIENT, service_url=service))
    assert result.error_tail == b""
    assert result.output.decode().splitlines() == [
        "".join(f"{i}," for i in range(20)),
        str([f"B{chr(65 + i)}" for i in range(20)]),
        "404",
    ]


def test_a_service_that_is_not_there(backend) -> None:
    line = python("""
        import http.client, os, urllib.request
        try: urllib.request.urlopen(os.environ['SERVICE'])
        except (OSError, http.client.HTTPException): print('no answer')
    """)
    assert run_one(backend, make_request(line)).output == b"no answer\n"


# -- isolation

RUN_ATTEMPTS = """\
import json, subprocess, sys
for name, code in json.load(open("attempts.json")).items():
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    print(json.dumps([name, done.stdout[-300:], done.stderr[-300:]]))
"""


@IN_CONTAINERS
def test_attempts_to_reach_the_host_are_contained(machines, host) -> None:  # noqa: F811
    """Nothing of the host is there but the service."""
    codes = {attempt: ATTEMPTS[attempt].format(**host) for attempt in OF_THE_HOST}
    files = {
        "attempts.json": (json.dumps(codes).encode(), 0o644),
        "run.py": (RUN_ATTEMPTS.encode(), 0o644),
    }
    result = run_one(machines, make_request("python3 run.py", files=files))
    reports = [json.loads(line) for line in result.output.splitlines()]
    assert [name for name, *_ in reports] == list(codes)
    for name, output, errors in reports:
        assert "ESCAPED" not in output, name
        assert SECRET not in output + errors, name
        assert "NameError" not in errors, name


@IN_CONTAINERS
def test_it_cannot_read_or_write_the_streams_of_its_guest(machines) -> None:
    """The guest is the parent of the command's shell."""
    line = python("""
        import os
        parent = os.getppid()
        with open(f'/proc/{parent}/stat') as file:
            guest = int(file.read().rpartition(')')[2].split()[1])
        for name in ('fd/1', 'mem', 'environ'):
            try: open(f'/proc/{guest}/{name}', 'rb+' if name == 'mem' else 'ab')
            except OSError: continue
            print('ESCAPED', name)
    """)
    result = run_one(machines, make_request(f"{line}; :"))
    assert (result.output, result.error_tail) == (b"", b"")


@IN_CONTAINERS
def test_resources_are_limited(machines) -> None:
    """The container and what it can return survive what the command uses up."""
    disk = python("""
        print('begun', flush=True)
        for place in ('.', '/dev/shm'):
            try:
                with open(f'{place}/large', 'wb') as file:
                    for i in range(64): file.write(bytes(2**20))
                print('wrote everything')
            except OSError as error: print(error.strerror)
    """)
    memory = python("""
        import os
        if os.fork() == 0: print(len(b'x' * (400 * 2**20)))
        print(os.WTERMSIG(os.wait()[1]))
    """)
    processes = python("""
        import os, time
        def fork():
            if os.fork() == 0: time.sleep(1000)
        try:
            for i in range(100): fork()
        except OSError as error: print(i > 10, error.strerror)
    """)
    outside = "echo x > /evil; echo x > /usr/evil; echo done"
    lines = [disk, memory, processes, outside]
    found = run_commands(machines, *map(make_request, lines))
    assert [result.output.decode().splitlines() for result in found] == [
        ["begun", "No space left on device", "No space left on device"],
        ["9"],
        ["True Resource temporarily unavailable"],
        ["done"],
    ]
    assert found[3].error_tail.count(b"Read-only file system") == 2
    large = make_request(disk, limits=MachineLimits(memory_mb=256, disk_mb=100))
    assert run_one(machines, large).output == b"begun\nwrote everything\nwrote everything\n"


# -- ends


@IN_CONTAINERS
def test_files_without_room_are_an_error(machines) -> None:
    files = {"large": (bytes(9 * 2**20), 0o644)}
    small = MachineLimits(memory_mb=256, disk_mb=8)
    with pytest.raises(CommandError, match=r"does not start \(No space left on device"):
        run_one(machines, make_request("true", files=files, limits=small))


SLEEP = python("import os, time; os.fork(); os.setsid() if os.fork() else 0; time.sleep(1000)")


@OF_MACHINES
def test_a_cancelled_command_leaves_no_machine(machines, request) -> None:
    count_machines = make_counter(machines, request)

    async def story() -> None:
        tasks = [asyncio.create_task(machines.run_command(make_request(SLEEP))) for _ in range(2)]
        await wait_until_async(lambda: count_machines() == 2)
        tasks[0].cancel()
        await wait_until_async(lambda: count_machines() == 1)
        tasks[1].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(error) for error in found} == {asyncio.CancelledError}

    asyncio.run(story())
    assert count_machines() == 0


RUN_IN_A_CONTAINER = """
import asyncio, sys
from command_parts import make_request
from fieldcraft.extensions.sandbox.backends.factory import open_backend
from fieldcraft.extensions.sandbox.limits import SandboxLimits
settings = {"image": sys.argv[1], "engine": sys.argv[2]}
backend = open_backend("container", settings, SandboxLimits(), None, "this test")
asyncio.run(backend.run_command(make_request(sys.argv[3])))
"""


@pytest.mark.long
def test_a_killed_run_leaves_no_container(engine: str, image: str) -> None:
    command = [sys.executable, "-c", RUN_IN_A_CONTAINER, image, engine, SLEEP]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}) as run:
        wait_until(lambda: list_containers(engine) != [])
        run.kill()
    wait_until(lambda: list_containers(engine) == [])


@OF_MACHINES
def test_a_machine_that_dies_ends_its_own_command_only(machines, request) -> None:
    count_machines = make_counter(machines, request)

    async def story() -> CommandOutcome:
        sleeping = asyncio.create_task(machines.run_command(make_request(SLEEP)))
        await wait_until_async(lambda: count_machines() == 1)
        kill_machine(machines, request)
        with pytest.raises(CommandError, match=r"^[^.]+( \([^\n]*\))?\.$"):
            await sleeping
        return await machines.run_command(make_request("echo next"))

    assert asyncio.run(story()).output == b"next\n"
    assert count_machines() == 0


def make_counter(backend, request) -> Callable[[], int]:
    """Return a function that counts the machines of a backend."""
    if backend.describe_isolation().backend == "e2b":
        server = request.getfixturevalue("e2b")
        return lambda: sum(bool(machine.processes) for machine in server.running.values())
    engine = request.getfixturevalue("engine")
    return lambda: len(list_containers(engine))


def kill_machine(backend, request) -> None:
    """Kill the only machine of a backend."""
    if backend.describe_isolation().backend == "e2b":
        [machine] = request.getfixturevalue("e2b").running.values()
        machine.kill()
    else:
        engine = request.getfixturevalue("engine")
        subprocess.run([engine, "kill", *list_containers(engine)], capture_output=True, check=True)


def test_lifetime_of_a_sandbox_of_e2b(request) -> None:
    """A command has its time, and 60 s for the start."""
    run_one(open_commands("e2b", request), make_request("true", seconds=100.0))
    assert request.getfixturevalue("e2b").ended[-1].timeouts == [160]


# What the engine does in place of starting a container; the message about it.
ENGINES = {
    "refuses": ("echo 'Error: no such image' >&2; exit 125", "no such image"),
    "talks nonsense": ('echo \'{"ready": "3"}\'; exec sleep 3600', "something else than results"),
    "opens a connection twice": (
        """echo '{"ready": "3", "port": 1}'
        for i in 1 2; do echo '{"connection": 1, "open": true}'; done; exec sleep 3600""",
        "defective .it opens a connection twice",
    ),
    "sends no base64": (
        """echo '{"ready": "3", "port": 1}'; echo '{"connection": 1, "open": true}'
        echo '{"connection": 1, "data": "!"}'; exec sleep 3600""",
        "defective",
    ),
    "dies": ('echo \'{"ready": "3", "port": 1}\'; read line; exit 1', "has ended"),
}


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_that_fails_costs_one_command(
    kind: str,
    write_engine,  # noqa: F811
    service: str,
    tmp_path: Path,
) -> None:
    write, read_calls = write_engine
    body, message = ENGINES[kind]
    write(body)
    backend = open_backend(
        "container", {"image": "x", "engine": "podman"}, LIMITS, None, "this test"
    )
    with pytest.raises(CommandError, match=message):
        run_one(backend, make_request("true", service_url=service))
    assert read_calls()[-1] == "rm --force"
    assert_no_processes(tmp_path)
