"""The same behaviours and escapes in every backend that this machine has."""

import asyncio
import os
from dataclasses import replace

import pytest
from backend_parts import LIMITS, NAMES, THAT_ISOLATE, WITH_SESSIONS
from test_escapes import ATTEMPTS, SECRET, host  # noqa: F401 - a fixture

from fieldcraft.extensions.sandbox.limits import ProgramStatus

FINISHED, TIMEOUT = ProgramStatus.FINISHED, ProgramStatus.TIMEOUT
# (code, standard output, exit code, last line of the standard error)
PROGRAMS = {
    "output": ("print('a'); print('ä' * 3)", "a\näää\n", 0, ""),
    "input": ("print(input()[::-1])", "ni\n", 0, ""),
    "input by name": ("print(open('/dev/stdin').read())", "in\n", 0, ""),
    "a file": ("print(open('data/a.txt').read())", "content\n", 0, ""),
    "a module": ("import helper; print(helper.ANSWER)", "42\n", 0, ""),
    "an error": ("print('a')\n1 / 0", "a\n", 1, "ZeroDivisionError: division by zero"),
    "no syntax": ("def f(:", "", 1, "SyntaxError: invalid syntax"),
    "an exit": ("import sys; sys.exit(3)", "", 3, ""),
    "an exit with text": ("import sys; sys.exit('why')", "", 1, "why"),
    "a hard exit": ("import os; os._exit(7)", "", 7, ""),
    "a signal": ("import os; os.abort()", "", -6, ""),
    "a child": ("import os\nif os.fork() == 0: print('child')\nelse: os.wait()", "child\n", 0, ""),
    "a thread": (
        "import threading\nthreading.Timer(0.01, print, ('thread',)).start()",
        "thread\n",
        0,
        "",
    ),
    "memory beside threads": (
        "import threading\n"
        "threading.stack_size(2**18)\n"
        "end = threading.Event()\n"
        "def work():\n    x = [bytes(1000)]; end.wait()\n"
        "for i in range(4): threading.Thread(target=work).start()\n"
        "try: print(len(bytes(220 * 2**20)) >> 20)\n"
        "finally: end.set()",
        "220\n",
        0,
        "",
    ),
    "a handler": ("import atexit; atexit.register(print, 'end')", "end\n", 0, ""),
    "closed streams": ("import sys; sys.stdout.close(); sys.stdout = None", "", 0, ""),
    "the order of sets": ("print({'a', 'b', 'c'} == {*'abc'}, hash('a') == hash('a'))",
                          "True True\n", 0, ""),
}  # fmt: skip
FILES = {"data/a.txt": b"content", "helper.py": b"ANSWER = 42"}
# Each uses more of a resource than it may; the name of the error.
EXCESSES = {
    "memory": ("x = bytearray(2**40)", "MemoryError"),
    "a large file": ("f = open('x', 'wb')\nwhile True: f.write(bytes(2**20))", "OSError"),
    "descriptors": ("x = [open('/dev/null') for _ in range(9999)]", "OSError"),
    "processes": (
        "import os\nwhile os.fork(): pass\nimport time; time.sleep(99)",
        "BlockingIOError",
    ),
}
# A container has files of its image, a process file system, its own root folder and other programs.
_IN_A_CONTAINER = (
    *(
        "passwords",
        "in /proc",
        "descriptors",
        "stream put",
        "/sys",
        "first process",
        "processes in",
    ),
    *("folder above", "a subprocess", "another program", "a shell", "of root", "core dumps"),
    *("program in memory", "socket, from a pair", "a port to listen on", "network, by name"),
    *("by its name", "network devices", "sockets that were open", "a library of its own"),
    *("times of a file", "POSIX shared memory", "settings of the kernel", "control groups"),
    *("limits of another process", "higher limits", "more memory", "standard library"),
    *("installed packages", "packages beside"),
)
OF_THE_HOST = [name for name in ATTEMPTS if not any(part in name for part in _IN_A_CONTAINER)]


@pytest.mark.parametrize("name", NAMES)
def test_programs(open_named, name: str) -> None:
    backend = open_named(name)

    async def run_all():
        return await asyncio.gather(
            *(backend.run(code, "in", files=FILES) for code, *_ in PROGRAMS.values())
        )

    results = dict(zip(PROGRAMS, asyncio.run(run_all()), strict=True))
    found = {
        key: (run.stdout.rstrip("\n"), run.exit_code, run.stderr.rstrip("\n").rpartition("\n")[2])
        for key, run in results.items()
    }
    assert found == {k: (out.rstrip("\n"), exit_code, error)
                     for k, (_, out, exit_code, error) in PROGRAMS.items()}  # fmt: skip
    assert {run.status for run in results.values()} == {FINISHED}


@pytest.mark.parametrize("name", WITH_SESSIONS)
def test_the_value_of_a_last_expression(open_named, name: str) -> None:
    """SandboxFusion's interface has no values."""
    assert asyncio.run(open_named(name).run("x = 6\nx * 7")).value == "42"


@pytest.mark.parametrize("name", NAMES)
def test_a_program_out_of_time_keeps_its_output(open_named, name: str) -> None:
    backend = open_named(name, replace(LIMITS, wall_seconds=1))
    for code in ("print('a', flush=True)\nwhile True: pass", "print('a', flush=True); 2**10**11"):
        run = asyncio.run(backend.run(code))
        assert (run.status, run.exit_code) == (TIMEOUT, None)
        assert run.stdout == "a\n"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("excess", ["memory", "a large file", "descriptors"])
def test_a_program_that_uses_too_much_fails(open_named, name: str, excess: str) -> None:
    require_failure(open_named(name), excess)


@pytest.mark.parametrize("name", THAT_ISOLATE)
def test_processes_are_limited(open_named, name: str) -> None:
    """The server for tests of E2B runs programs as its own user, who may have no limit."""
    require_failure(open_named(name), "processes")


def require_failure(backend, excess: str) -> None:
    code, error = EXCESSES[excess]
    run = asyncio.run(backend.run(code))
    assert run.exit_code == 1
    assert run.stderr.rstrip("\n").rpartition("\n")[2].startswith(error)


@pytest.mark.parametrize("name", WITH_SESSIONS)
def test_long_output_is_cut_and_endless_output_ends_the_program(open_named, name: str) -> None:
    """A server of SandboxFusion has its own limit."""
    backend = open_named(name, replace(LIMITS, output_bytes=1000))
    run = asyncio.run(backend.run("print('a' * 50_000); print('b' * 50_000)"))
    assert run.ok
    assert run.stdout.startswith("a" * 500 + "\n[99002 bytes left out]\nbbb")
    flood = asyncio.run(backend.run("while True: print('x' * 10_000)"))
    assert not flood.ok
    assert len(flood.stdout) < 1100


@pytest.mark.parametrize("name", WITH_SESSIONS)
def test_a_session_keeps_variables_and_files_until_its_interpreter_ends(open_named, name) -> None:
    backend = open_named(name)

    async def story():
        async with backend.open_session(files=FILES) as session, backend.open_session() as other:
            return [
                await session.run("x = 5; open('f', 'w').write('kept')"),
                await session.run("print(x, open('f').read(), open('data/a.txt').read())"),
                await session.run("1 / 0"),
                await session.run("print(input(), x)", "typed"),
                await other.run("'x' in globals()"),
                await session.run("import os; os._exit(7)"),
                await session.run("print('x' in globals(), open('data/a.txt').read())"),
            ]

    kept, read, error, typed, other, ended, anew = asyncio.run(story())
    assert kept.value == "4"
    assert read.stdout == "5 kept content\n"
    assert (error.exit_code, typed.stdout, other.value) == (1, "typed 5\n", "False")
    assert (ended.exit_code, ended.restarted) == (7, False)
    assert (anew.stdout, anew.restarted) == ("False content\n", True)


@pytest.mark.parametrize("name", WITH_SESSIONS)
def test_a_session_begins_anew_after_a_timeout(open_named, name: str) -> None:
    backend = open_named(name, replace(LIMITS, wall_seconds=2))

    async def story():
        async with backend.open_session() as session:
            return [await session.run(c) for c in ("x = 5", "while True: pass", "'x' in globals()")]

    _, late, anew = asyncio.run(story())
    assert late.status is TIMEOUT
    assert (anew.value, anew.restarted) == ("False", True)


@pytest.mark.parametrize("name", THAT_ISOLATE)
def test_attempts_to_reach_the_host_are_contained(open_named, host, name: str) -> None:  # noqa: F811
    backend = open_named(name)
    codes = {attempt: ATTEMPTS[attempt].format(**host) for attempt in OF_THE_HOST}

    async def run_all():
        return await asyncio.gather(*map(backend.run, codes.values()))

    for attempt, run in zip(codes, asyncio.run(run_all()), strict=True):
        text = run.stdout + run.stderr + (run.value or "")
        assert "ESCAPED" not in run.stdout, attempt
        assert SECRET not in text, attempt
        assert "NameError" not in text, attempt


def test_the_attempts_are_many() -> None:
    assert len(OF_THE_HOST) > 20


@pytest.mark.parametrize("name", THAT_ISOLATE)
def test_programs_do_not_see_each_other(open_named, name: str) -> None:
    backend = open_named(name)
    code = (
        "import os\nprint(sorted(os.listdir('.')), sorted(os.listdir('/dev/shm')))\n"
        "open('mark', 'x').close(); open('/dev/shm/mark', 'x').close()"
    )

    async def twice():
        return await asyncio.gather(backend.run(code), backend.run(code))

    first, second = asyncio.run(twice())
    assert first.stdout == second.stdout
    assert "mark" not in first.stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_backend_says_what_isolates(open_named, name: str) -> None:
    isolation = open_named(name).describe_isolation()
    assert isolation.backend == name
    assert "\n" not in isolation.summary
    assert str(os.getuid()) not in isolation.layers
