"""The tool `python`, in a local sandbox and over a server."""

import asyncio
import base64
import math
import threading

import httpx
import pytest

from bad_servers import answers, raw_server, resets
from fieldcraft.environments.tool_session import open_session_tools
from fieldcraft.extensions.sandbox.limits import ProgramResult, ProgramStatus, SandboxLimits
from fieldcraft.extensions.sandbox.protocol import RunCodeRequest, SandboxClient, make_response
from fieldcraft.extensions.sandbox.sandbox import Sandbox
from fieldcraft.extensions.sandbox.server import create_app
from fieldcraft.extensions.sandbox.tool import render_observation
from fieldcraft.tools.factory import make_tool
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import ArgumentError, Task, ToolError, ToolUnavailableError, UserError

TASK = Task(id="1", question="?", answers=["!"])


@pytest.fixture(scope="module")
def sandbox():
    try:
        shared = Sandbox(SandboxLimits(wall_seconds=600), max_concurrent=2, libraries=())
    except UserError as error:
        pytest.skip(f"this system has no full isolation: {error}")
    with shared:
        yield shared


@pytest.fixture(scope="module")
def server(sandbox):
    with serve_in_thread(create_app(sandbox)) as url:
        yield url


@pytest.mark.usefixtures("sandbox")  # skips if isolation is unavailable
def test_programs_find_the_libraries_loaded_that_are_named_and_no_others() -> None:
    tool = make_tool("python", {"libraries": ["wave"]})
    code = "import sys; print('wave' in sys.modules, 'sympy' in sys.modules)"
    assert asyncio.run(tool(code=code)) == "True False"


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (ProgramResult(ProgramStatus.FINISHED, 0, "a\n", ""), "a"),
        (ProgramResult(ProgramStatus.FINISHED, 0, "a\n", "warning\n", "3"), "a\n3\nwarning"),
        (ProgramResult(ProgramStatus.FINISHED, 0, "", ""), "(no output)"),
        (
            ProgramResult(ProgramStatus.FINISHED, 0, "", "", "1", restarted=True),
            "(a new interpreter: earlier variables and files are lost)\n1",
        ),
    ],
)
def test_what_is_read_of_a_run(run, text) -> None:
    assert render_observation(run, 5) == text


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (
            ProgramResult(ProgramStatus.FINISHED, 1, "a\n", "E\n"),
            "a\nE\nThe program ended with status 1.",
        ),
        (
            ProgramResult(ProgramStatus.FINISHED, -11, "", ""),
            "(no output)\nThe program was ended by signal 11.",
        ),
        (
            ProgramResult(ProgramStatus.TIMEOUT, None, "a", ""),
            "a\nThe program was stopped, because its time of 5 s was over.",
        ),
        (
            ProgramResult(ProgramStatus.OUTPUT, None, "a", ""),
            "a\nThe program was stopped, because it printed too much.",
        ),
    ],
)
def test_a_failed_program_is_a_failed_call(run, text) -> None:
    with pytest.raises(ToolError) as caught:
        render_observation(run, 5)
    assert str(caught.value) == text


def test_a_lost_program_is_no_fault_of_the_policy() -> None:
    with pytest.raises(ToolUnavailableError):
        render_observation(ProgramResult(ProgramStatus.LOST, None, "", ""), 5)


def test_a_stateful_tool_keeps_variables_for_one_rollout() -> None:
    tool = make_tool("python", {"stateful": True, "limits": {"wall_seconds": 600}})

    async def rollout(*programs: str) -> list[str]:
        async with open_session_tools([tool], TASK, 600) as ready:
            return [await ready["python"](code=code) for code in programs]

    async def both() -> list[list[str]]:
        return await asyncio.gather(rollout("x = 2", "x + 1"), rollout("'x' in globals()"))

    assert asyncio.run(both()) == [["(no output)", "3"], ["False"]]


def test_a_stateless_tool() -> None:
    tool = make_tool("python", {"limits": {"wall_seconds": 600}})
    assert tool.schema["function"]["name"] == "python"
    assert asyncio.run(tool(code="import numpy\nnumpy.arange(3).sum()")) == "np.int64(3)"
    with pytest.raises(ArgumentError):
        asyncio.run(tool(program="1"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limits": {"memory": 1}}, "no limit 'memory'"),
        ({"limits": {"wall_seconds": -1}}, "wall_seconds of a sandbox must be finite and greater"),
        ({"limits": {"wall_seconds": math.inf}}, "sandbox must be finite and greater than 0"),
        ({"limits": {"wall_seconds": math.nan}}, "sandbox must be finite and greater than 0"),
        (
            {"limits": {"processes": "many"}},
            "'limits' of the tool 'python' is wrong: it must be a number, not 'many'",
        ),
        ({"allow_missing_layers": ["jail"]}, "no layer 'jail'"),
        ({"url": "http://127.0.0.1:1", "stateful": True}, "has no sessions"),
        ({"url": "http://127.0.0.1:1", "libraries": []}, "has no sessions"),
        ({"url": "ftp://host"}, "not a url of a server"),
        ({"max_concurrent": 0}, "must be at least 1, not 0"),
    ],
)
def test_mistakes_in_a_recipe(settings, message) -> None:
    with pytest.raises(UserError, match=message):
        make_tool("python", settings)


def test_the_tool_over_a_server(server, monkeypatch) -> None:
    monkeypatch.setattr("fieldcraft.extensions.sandbox.protocol.OVERHEAD_SECONDS", 300)

    def tool(seconds: float):
        limits = {"wall_seconds": seconds}
        return make_tool("python", {"url": f"{server}/run_code", "limits": limits})

    assert asyncio.run(tool(300)(code="print(6 * 7)")) == "42"
    with pytest.raises(ToolError, match=r"ZeroDivisionError[^\0]*status 1"):
        asyncio.run(tool(300)(code="1 / 0"))
    with pytest.raises(ToolError, match=r"time of 0\.1 s"):
        asyncio.run(tool(0.1)(code="while True: pass"))


def test_a_server_that_is_not_there() -> None:
    client = SandboxClient("http://127.0.0.1:9", SandboxLimits(), restart_seconds=0.0)
    with pytest.raises(ToolUnavailableError, match="does not answer"):
        asyncio.run(client.run("1"))


@pytest.mark.long
def test_a_program_waits_for_a_server_that_is_restarted() -> None:
    result = ProgramResult(ProgramStatus.FINISHED, 0, stdout="42\n", stderr="")
    restarting = answers(b"", status=502)  # of a load balancer
    finished = answers(make_response(result).model_dump_json().encode())
    behaviours = [resets, *[restarting] * 4, finished]  # it was killed during the program
    with raw_server(*behaviours) as (url, requests):
        tool = make_tool("python", {"url": url, "limits": {"wall_seconds": 300}})
        assert asyncio.run(tool(code="print(6 * 7)")) == "42"
    assert len(requests) == len(behaviours)


def post(server: str, **body) -> httpx.Response:
    body = {"run_timeout": 300} | body
    return httpx.post(f"{server}/run_code", json=body, timeout=300, trust_env=False)


def test_the_interface_of_sandbox_fusion(server) -> None:
    answer = post(
        server,
        code="print(input(), open('a.txt').read()); open('b.txt', 'w').write('out')",
        language="python",
        compile_timeout=10,
        run_timeout=300,
        stdin="in",
        files={"a.txt": base64.b64encode(b"file").decode(), "absent": None},
        fetch_files=["b.txt"],
    ).json()
    seconds = answer["run_result"].pop("execution_time")
    assert seconds > 0
    assert answer == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": {"status": "Finished", "return_code": 0, "stdout": "in file\n", "stderr": ""},
        "executor_pod_name": None,
        "files": {"b.txt": base64.b64encode(b"out").decode()},
    }


def test_fields_that_are_null_count_as_absent(server) -> None:
    names = ("language", "stdin", "run_timeout", "memory_limit_MB", "files", "fetch_files", "more")
    answer = post(server, code="print(6 * 7)", **dict.fromkeys(names)).json()
    assert answer["run_result"]["stdout"] == "42\n"


def test_failures_over_the_interface(server) -> None:
    failed = post(server, code="import sys; sys.exit(4)", language="python").json()
    assert (failed["status"], failed["run_result"]["return_code"]) == ("Failed", 4)
    late = post(server, code="while True: pass", language="python", run_timeout=0.3).json()
    assert (late["status"], late["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert late["run_result"]["return_code"] is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"code": "1", "language": "cpp"}, "language"),
        ({"code": None}, "code: it is missing."),
        ({"language": "python"}, "code"),
        ({"code": "1", "files": {"../up": ""}}, "files"),
        ({"code": "1", "files": {"/etc/passwd": ""}}, "files"),
        ({"code": "1", "fetch_files": ["a/../../b"]}, "fetch_files"),
        ({"code": "1", "files": {"a": "%"}}, "base64"),
        ({"code": "1", "run_timeout": 0}, "run_timeout"),
    ],
)
def test_requests_that_are_refused(server, body, message) -> None:
    answer = post(server, **body)
    assert answer.status_code == 422
    assert message in answer.json()["error"]


def test_a_program_gets_no_more_than_the_sandbox_itself_has() -> None:
    own = SandboxLimits(wall_seconds=20, memory_mb=256)
    for fields, seconds, memory in (
        ({}, 10.0, 256),
        ({"run_timeout": 5, "memory_limit_MB": 100}, 5.0, 100),
        ({"run_timeout": 600, "memory_limit_MB": 10**9}, 20.0, 256),
        ({"memory_limit_MB": -1}, 10.0, 256),
    ):
        found = RunCodeRequest(code="1", **fields).make_limits(own)
        assert found == SandboxLimits(wall_seconds=seconds, memory_mb=memory)


FORGES = """
import gc
for part in gc.get_objects():
    if isinstance(part, dict) and "fetch" in part and "code" in part:
        part["fetch"] = ["b", "b"]
open("b", "w").write("b")
"""


def test_a_program_names_no_files_that_nobody_asked_for(server) -> None:
    answer = post(server, code=FORGES, fetch_files=["a", "none"], run_timeout=300)
    assert answer.status_code == 200
    assert answer.json()["files"].keys() == {"a", "none"}  # their contents belong to the program


def test_health_and_metrics(server, sandbox) -> None:
    health = httpx.get(f"{server}/health", trust_env=False).json()
    assert health == {"status": "ok", "layers": sandbox.layers}
    post(server, code="1", language="python")
    lines = httpx.get(f"{server}/metrics", trust_env=False).text.splitlines()
    counts = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(counts['fieldcraft_sandbox_runs_total{status="finished"}']) >= 1
    assert counts["fieldcraft_sandbox_under_way"] == "0"


def test_a_full_queue_is_told(sandbox, monkeypatch) -> None:
    """Two slots and no queue: of six requests two run, after the other four received a 503."""
    go_on, run = threading.Event(), sandbox.run

    async def held(*arguments):
        await asyncio.to_thread(go_on.wait)
        return await run(*arguments)

    async def rush(url: str) -> list[httpx.Response]:
        body = {"code": "print(1)", "language": "python"}
        async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
            completed = asyncio.as_completed(
                [client.post(f"{url}/run_code", json=body) for _ in range(6)]
            )
            answers = [await next(completed) for _ in range(4)]
            go_on.set()
            return [*answers, *[await answer for answer in completed]]

    monkeypatch.setattr(sandbox, "run", held)
    with serve_in_thread(create_app(sandbox, queue=0)) as url:
        answers = asyncio.run(rush(url))
    assert [answer.status_code for answer in answers] == [503, 503, 503, 503, 200, 200]
    assert {a.headers.get("retry-after") for a in answers if a.status_code == 503} == {"1"}


def test_a_program_reads_its_standard_input() -> None:
    for stateful in (False, True):
        tool = make_tool("python", {"stateful": stateful, "limits": {"wall_seconds": 600}})

        async def doubled(tool=tool) -> str:
            async with open_session_tools([tool], TASK, 600) as ready:
                return await ready["python"](code="print(2 * int(input()))", stdin="21\n")

        assert asyncio.run(doubled()) == "42"


def test_programs_find_the_files_of_a_folder(tmp_path) -> None:
    (tmp_path / "people").mkdir()
    (tmp_path / "people/notes.py").write_text(
        "def note(name):\n    raise LookupError(f'{name} left')\n"
    )
    settings = {"files": str(tmp_path), "limits": {"wall_seconds": 600}}
    code = "from people.notes import note\nnote('Bran Tel')"
    for stateful in (False, True):
        tool = make_tool("python", {**settings, "stateful": stateful, "errors": "last-line"})

        async def call_tool(tool=tool) -> str:
            async with open_session_tools([tool], TASK, 600) as ready:
                return await ready["python"](code=code)

        with pytest.raises(ToolError) as caught:
            asyncio.run(call_tool())
        assert str(caught.value) == "LookupError: Bran Tel left"
    with pytest.raises(UserError, match="is not a folder: correct 'files' of the tool python"):
        make_tool("python", {"files": str(tmp_path / "gone")})


def test_an_error_without_a_last_line_states_the_status(sandbox) -> None:
    run = asyncio.run(sandbox.run("import sys\nsys.exit(1)"))
    with pytest.raises(ToolError, match=r"^The program ended with status 1\.$"):
        render_observation(run, 10, "last-line")
