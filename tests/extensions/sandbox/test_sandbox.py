"""Results of a run and a session."""

import asyncio
from dataclasses import replace

import pytest
from sandbox_parts import QUICK, out_of_time

from fieldcraft.extensions.sandbox import kernel, landlock
from fieldcraft.extensions.sandbox.layers import require_no_missing_layers, require_waivable
from fieldcraft.extensions.sandbox.limits import (
    OutputBuffer,
    ProgramStatus,
    SandboxLimits,
    truncate_output,
)
from fieldcraft.extensions.sandbox.sandbox import Sandbox
from fieldcraft.types import UserError


def test_a_program_that_works(run) -> None:
    done = run("name = input()\nprint('Hello', name)\nlen(name)", stdin="Ada\n")
    assert (done.status, done.exit_code, done.ok) == (ProgramStatus.FINISHED, 0, True)
    assert (done.stdout, done.stderr, done.value) == ("Hello Ada\n", "", "3")


@pytest.mark.parametrize(
    ("code", "exit_code", "stderr"),
    [
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("def f(:", 1, "SyntaxError: invalid syntax\n"),
        (
            "\0",
            1,
            "source code string cannot contain null bytes\n",
        ),  # a ValueError in older patch releases
        ("This is no code.", 1, "SyntaxError: invalid syntax\n"),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('why')", 1, "why\n"),
        ("import os; os._exit(7)", 7, ""),
        ("import os; os.abort()", -6, ""),
        ("import ctypes; ctypes.string_at(0)", -11, ""),
        ("input()", 1, "EOFError: EOF when reading a line\n"),
    ],
)
def test_how_programs_fail(run, code: str, exit_code: int, stderr: str) -> None:
    done = run(code)
    assert (done.status, done.exit_code, done.ok) == (ProgramStatus.FINISHED, exit_code, False)
    assert done.stderr.endswith(stderr)
    assert (stderr == "") == (done.stderr == "")


@pytest.mark.parametrize(
    "code",
    [
        "print(open('/dev/stdin').read())",
        "print(open('/dev/fd/0', encoding='utf-8').read())",
        "import os; print(os.read(os.open('/dev/stdin', os.O_RDONLY), 99).decode())",
        "import sys; sys.stdin = open('/dev/stdin'); print(input() + '\\n' + input())",
        "from pathlib import Path; print(Path('/dev/stdin').read_text())",
        "print(open(0).read())",
        "print(open('/proc/self/fd/0').read())",
        "import numpy; print('\\n'.join(numpy.loadtxt('/dev/stdin', str, delimiter='|')))",
    ],
)
def test_programs_that_open_their_standard_input(run, code: str) -> None:
    done = run(code, stdin="2 3\nä")
    assert (done.stderr, done.stdout.rstrip("\n")) == ("", "2 3\nä")
    assert run("print(repr(open('/dev/stdin').read()))").stdout == "''\n"


NAMES = ("/dev/{name}", "/dev/fd/{number}", "/proc/self/fd/{number}")


@pytest.mark.parametrize("place", NAMES)
@pytest.mark.parametrize(
    "code",
    [
        "print('a', flush=True)\nprint('b', file=open({path!r}, 'w'), flush=True)\nprint('c')",
        "import sys; sys.stdout = open({path!r}, 'a'); print('a\\nb\\nc', flush=True)",
        "import os; d = os.open({path!r}, os.O_WRONLY | os.O_CREAT); os.write(d, b'a\\nb\\nc\\n')",
        "from pathlib import Path; _ = Path({path!r}).write_text('a\\nb\\nc\\n')",
        "import os; print('a\\nb', flush=True)\nif os.fork(): os.wait()\n"
        "else: open({path!r}, 'w').write('c\\n')",
    ],
)
def test_programs_that_open_their_output(run, place: str, code: str) -> None:
    done = run(code.format(path=place.format(name="stdout", number=1)))
    assert (done.stdout, done.stderr) == ("a\nb\nc\n", "")
    done = run(f"open({place.format(name='stderr', number=2)!r}, 'w').write('why')")
    assert (done.stdout, done.stderr) == ("", "why")


def test_names_of_other_descriptors_are_not_there(run) -> None:
    done = run("import os; r, w = os.pipe(); print(os.path.exists(f'/dev/fd/{r}'))")
    assert done.stdout == "False\n"


def test_calls_of_a_session_write_by_name_each_into_its_own_output(sandbox) -> None:
    async def story() -> list[str]:
        async with sandbox.open_session() as session:
            await session.run("out = open('/dev/stdout', 'w')")
            return [(await session.run(f"print({i}, file=out, flush=True)")).stdout for i in (1, 2)]

    assert asyncio.run(story()) == ["1\n", "2\n"]


def test_a_standard_input_without_room_has_no_name_but_can_be_read(run) -> None:
    lines = "x" * 8 * 2**20
    limits = SandboxLimits(wall_seconds=600.0, memory_mb=256, disk_mb=1, file_mb=16)
    code = "import os; print(len(input()), os.path.exists('/dev/stdin'))"
    assert run(code, stdin=lines, limits=limits).stdout == f"{len(lines)} False\n"


def test_a_traceback_shows_the_program_and_nothing_else(run) -> None:
    done = run("def f():\n    return 1 / 0\nf()")
    assert [line.strip() for line in done.stderr.splitlines() if "File" in line] == [
        'File "<program>", line 3, in <module>',
        'File "<program>", line 2, in f',
    ]
    assert "return 1 / 0" in done.stderr
    done = run("text = '\x0c \x85 \u2028'\nanswer = 1 / 0")
    assert "    answer = 1 / 0\n" in done.stderr


@pytest.mark.long
def test_a_program_out_of_time_keeps_its_output_and_says_where_it_was(run) -> None:
    done = out_of_time(run, "while True:\n    pass")
    assert done.stdout == "begun\n"
    assert 'File "<program>", line' in done.stderr


def test_cpu_time_is_limited_apart_from_wall_time(run) -> None:
    done = run("while True: pass", limits=SandboxLimits(wall_seconds=600, cpu_seconds=1))
    assert done.status is ProgramStatus.TIMEOUT


def test_long_output_keeps_head_and_tail(run) -> None:
    done = run("print('a' * 50_000); print('b' * 50_000)", limits=replace(QUICK, output_bytes=1000))
    assert done.ok
    assert done.stdout == f"{'a' * 500}\n[99002 bytes left out]\n{'b' * 499}\n"
    assert done.omitted_bytes == 99_002


def test_a_flood_of_output_ends_the_program(run) -> None:
    done = run("while True: print('x' * 10_000)", limits=replace(QUICK, output_bytes=1000))
    assert done.status is ProgramStatus.OUTPUT
    assert done.stdout.startswith("x" * 500)


def test_output_that_is_no_text(run) -> None:
    done = run("import os; os.write(1, bytes([65, 255, 66]))")
    assert done.stdout == "A\ufffdB"


def test_closed_pipes_and_descriptors_do_not_hang(run) -> None:
    assert run("import os\nfor d in range(300):\n    try: os.close(d)\n    except OSError: pass")
    assert run("import sys; sys.stdout.close(); sys.stdout = None").status is ProgramStatus.FINISHED


def test_what_a_program_starts_ends_with_it(run) -> None:
    """A child that keeps the pipe open neither delays the result nor writes into the next one."""
    code = "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(99)\nprint('parent')"
    assert run(code).stdout == "parent\n"


def test_threads_are_waited_for_and_what_is_registered_is_called(run) -> None:
    code = (
        "import atexit, threading, time\natexit.register(print, 'end')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()"
    )
    assert run(code).stdout == "thread\nend\n"


def test_processes_and_pools_work(run) -> None:
    code = (
        "from concurrent.futures import ProcessPoolExecutor as P\n"
        "def f(x): return x * x\nwith P(2) as pool: print(list(pool.map(f, [1, 2, 3])))"
    )
    assert run(code).stdout == "[1, 4, 9]\n"


def test_libraries(run) -> None:
    code = "import sympy, numpy, sqlite3, ssl, asyncio\nasyncio.run(asyncio.sleep(0))\n"
    done = run(code + "x = sympy.symbols('x')\nsympy.integrate(x**2), numpy.arange(3).sum()")
    assert done.value == "(x**3/3, np.int64(3))"


def test_files_go_in_and_come_out(run) -> None:
    done = run(
        "text = open('in/a.txt').read()\nopen('b.bin', 'wb').write(text.encode()[::-1])",
        files={"in/a.txt": b"abc"},
        fetch=["b.bin", "absent"],
    )
    assert done.files == {"b.bin": b"cba"}


def test_random_numbers_differ_and_sets_do_not(run) -> None:
    code = "import random, numpy; print(random.random(), numpy.random.random())"
    assert run(code).stdout != run(code).stdout
    code = "print({'a', 'b', 'c', 'd', 'e'})"
    assert run(code).stdout == run(code).stdout


def test_a_session_keeps_its_variables_and_files(sandbox) -> None:
    async def run_session():
        async with sandbox.open_session() as session:
            return [
                await session.run("import math\nx = 5\nopen('f', 'w').write('kept')"),
                await session.run("print(open('f').read())\nx = x + 1\nx"),
                await session.run("1 / 0"),
                await session.run("print(input(), x)", "typed"),
            ]

    first, second, third, fourth = asyncio.run(run_session())
    assert (first.value, second.stdout, second.value) == ("4", "kept\n", "6")
    assert third.exit_code == 1
    assert (fourth.stdout, fourth.restarted) == ("typed 6\n", False)


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("while True: pass", ProgramStatus.TIMEOUT),
        ("import os; os._exit(1)", ProgramStatus.FINISHED),
        ("import os; os.close(3)", ProgramStatus.FINISHED),
    ],
)
def test_a_session_that_ended_begins_anew_and_says_so(sandbox, ending, status) -> None:
    async def run_session():
        async with sandbox.open_session(QUICK) as session:
            await session.run("x = 5")
            if status is ProgramStatus.TIMEOUT:
                session._limits = replace(QUICK, wall_seconds=0.1)
            ended = await session.run(ending)
            session._limits = QUICK
            return [ended, await session.run("'x' in globals()"), await session.run("1")]

    ended, fresh, later = asyncio.run(run_session())
    assert ended.status is status
    assert (fresh.value, fresh.restarted, later.restarted) == ("False", True, False)


def test_layers_are_refused_or_waived_by_name() -> None:
    require_no_missing_layers({})
    with pytest.raises(
        UserError, match=r"lacks the layer 'network' \(no\); .*allow_missing_layers: \[network\]"
    ):
        require_no_missing_layers({"network": "no"})
    with pytest.raises(UserError, match="'user' cannot be waived"):
        require_no_missing_layers({"user": "Operation not permitted"})
    with pytest.raises(UserError, match="no layer 'docker' to waive"):
        require_waivable(["docker"])
    with pytest.raises(UserError, match="'pid' of the sandbox cannot be waived"):
        require_waivable(["pid"])


def test_an_old_landlock_is_told(monkeypatch) -> None:
    monkeypatch.setattr(kernel, "landlock_version", lambda: 3)
    assert landlock.explain_missing("landlock-files") is None
    assert landlock.explain_missing("landlock-scopes") == (
        "the kernel's Landlock has version 3, and 6 is needed"
    )


def test_a_waived_layer_is_not_active() -> None:
    with Sandbox(QUICK, allow_missing_layers=["landlock-network"], libraries=()) as sandbox:
        assert "landlock-network" not in sandbox.layers
        assert asyncio.run(sandbox.run("1 + 1")).value == "2"


def test_a_library_that_is_missing_is_told() -> None:
    with pytest.raises(UserError, match="No module named 'no_such_library'"):
        Sandbox(libraries=["no_such_library"])


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(UserError, match="wall_seconds"):
        SandboxLimits(wall_seconds=0)


def test_clipping() -> None:
    assert truncate_output("abcdef", 6) == "abcdef"
    assert truncate_output("abcdefg", 4) == "ab\n[3 bytes left out]\nfg"
    pieces = OutputBuffer(4)
    for letter in "abcdefghijklmnopqrstuvwxyz":
        pieces.add(letter.encode())
    assert pieces.render() == "ab\n[22 bytes left out]\nyz"
