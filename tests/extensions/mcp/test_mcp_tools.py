"""Tools of MCP servers: real processes and a real server over HTTP."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.config.components import MCP_TOOL, ComponentKind
from fieldcraft.config.instantiation import instantiate
from fieldcraft.config.names import resolve
from fieldcraft.environments.tool_session import open_session_tools
from fieldcraft.extensions.mcp import schemas
from fieldcraft.extensions.mcp.server import McpServer
from fieldcraft.types import (
    AnyTool,
    ArgumentError,
    StatefulTool,
    Task,
    Tool,
    ToolError,
    ToolUnavailableError,
    UserError,
)
from mcp_parts import (
    DIES,
    SERVER,
    end,
    lives,
    start_http,
    started,
    write_lister,
    write_server,
)
from ports import reserved_port

SECONDS = 120.0  # enough to start a server on a busy machine
TASK = Task("1", "What?", ())
OBJECT = {"type": "object"}


def make(mcp: str, **settings: Any) -> McpServer:
    server = instantiate(
        ComponentKind.TOOL,
        MCP_TOOL,
        resolve(ComponentKind.TOOL, MCP_TOOL),
        {"mcp": mcp, **settings},
        {},
    )
    assert isinstance(server, McpServer)
    return server


def listed(mcp: str, **settings: Any) -> list[AnyTool]:
    return asyncio.run(make(mcp, **settings).list_tools(SECONDS))


def in_rollout(
    mcp: str, use_tools: Callable[[dict[str, Tool]], Awaitable[Any]], **settings: Any
) -> Any:
    """Return the result of `use_tools`, called with the tools of one rollout."""

    async def run() -> Any:
        tools = await make(mcp, **settings).list_tools(SECONDS)
        async with open_session_tools(tools, TASK, SECONDS) as opened:
            return await use_tools(opened)

    return asyncio.run(run())


def test_a_server_that_prints_is_told_of_in_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that prints still works, and is reported without a traceback for each line."""
    chatty = SERVER.replace("notes.append(text)", "notes.append(text); print('hm', flush=True)")
    command = write_server(tmp_path, f"print('hello\\nworld', flush=True)\n{chatty}")

    async def use_tools(tools: dict[str, Tool]) -> list[str]:
        return [await tools["note"](text=text) for text in "ab"]

    assert in_rollout(command, use_tools) == ["a", "a b"]
    [record] = caplog.records
    assert record.getMessage().startswith(f"The MCP server '{command}' writes to its standard")
    assert (record.levelname, record.exc_info, record.exc_text) == ("WARNING", None, None)


@pytest.mark.long
def test_a_server_says_what_it_has(tmp_path: Path) -> None:
    tools = listed(write_server(tmp_path))
    assert [t.name for t in tools] == ["note", "count", "fail", "end", "picture", "secret"]
    assert all(isinstance(tool, StatefulTool) for tool in tools)
    assert tools[0].schema == {
        "type": "function",
        "function": {
            "name": "note",
            "description": "Write a note.\n\nAll notes come back.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string"}},
                "required": ["text"],
            },
        },
    }
    [process] = started(tmp_path)  # started to list the tools, and terminated afterwards
    assert not lives(process)


@pytest.mark.long
def test_only_some_of_them_with_a_prefix(tmp_path: Path) -> None:
    command = write_server(tmp_path)
    tools = listed(command, only=["count", "note"], prefix="my_")
    assert [tool.name for tool in tools] == ["my_note", "my_count"]
    assert tools[0].schema["function"]["name"] == "my_note"
    with pytest.raises(UserError, match=r"has no tool 'notes'; did you mean 'note'\?"):
        listed(command, only=["notes"])


def test_the_tools_of_a_rollout_share_its_server(tmp_path: Path) -> None:
    command = write_server(tmp_path)

    async def use_tools(tools: dict[str, Tool]) -> list[str]:
        first = await tools["my_note"](text="a")
        return [first, await tools["my_note"](text="b"), await tools["my_count"]()]

    async def both() -> list[list[str]]:
        tools = await make(command, prefix="my_").list_tools(SECONDS)

        async def call_note() -> list[str]:
            async with open_session_tools(tools, TASK, SECONDS) as opened:
                return await use_tools(opened)

        return list(await asyncio.gather(call_note(), call_note()))

    assert asyncio.run(both()) == [["a", "a b", "2"]] * 2
    processes = started(tmp_path)
    assert len(processes) == 3  # one to list the tools and one for each rollout
    assert not any(map(lives, processes))


def test_a_rollout_without_a_call_starts_nothing(tmp_path: Path) -> None:
    async def use_tools(tools: dict[str, Tool]) -> None:
        assert "note" in tools

    in_rollout(write_server(tmp_path), use_tools)
    assert len(started(tmp_path)) == 1


def test_a_shared_server_is_started_once_and_ends_with_the_loop(tmp_path: Path) -> None:
    command = write_server(tmp_path)

    async def run() -> list[str]:
        messages = []
        for text in ("a", "b"):  # like an agent that opens its tools for each question
            tools = await make(command, connection="shared").list_tools(SECONDS)
            async with open_session_tools(tools, TASK, SECONDS) as opened:
                messages.append(await opened["note"](text=text))
        [process] = started(tmp_path)
        assert lives(process)
        return messages

    assert asyncio.run(run()) == ["a", "a b"]
    assert [lives(process) for process in started(tmp_path)] == [False]


@pytest.mark.parametrize("connection", ["rollout", pytest.param("shared", marks=pytest.mark.long)])
def test_a_server_that_ends_is_started_again_by_the_next_call(
    connection: str, tmp_path: Path
) -> None:
    async def use_tools(tools: dict[str, Tool]) -> str:
        await tools["note"](text="lost")
        with pytest.raises(ToolUnavailableError, match=r"it ended, and .* 'the lights go out'"):
            await tools["end"]()
        return await tools["note"](text="new")

    assert in_rollout(write_server(tmp_path), use_tools, connection=connection) == "new"


WITH_ALL_THREE = SERVER.replace(
    "def end() -> str:",
    """async def end() -> str:
    notes.append("end")
    while len(notes) < 3:
        await anyio.sleep(0.01)""",
).replace("import os, sys", "import os, sys, anyio")


@pytest.mark.long
def test_calls_beside_one_another_fail_together_and_one_start_follows(tmp_path: Path) -> None:
    """Concurrent calls: the server exits once all three have arrived."""

    async def use_tools(tools: dict[str, Tool]) -> list[Any]:
        await tools["count"]()
        failed = await asyncio.gather(
            tools["end"](), tools["end"](), tools["end"](), return_exceptions=True
        )
        again = await asyncio.gather(tools["count"](), tools["count"]())
        return [*(isinstance(error, ToolUnavailableError) for error in failed), *again]

    server = write_server(tmp_path, WITH_ALL_THREE)
    played = in_rollout(server, use_tools, connection="shared")
    assert played == [True, True, True, "0", "0"]
    assert len(started(tmp_path)) == 2


def test_what_the_model_is_told(tmp_path: Path) -> None:
    async def use_tools(tools: dict[str, Tool]) -> None:
        with pytest.raises(ToolError, match="no luck") as failed:
            await tools["fail"]()
        assert not isinstance(failed.value, ToolUnavailableError)
        with pytest.raises(ArgumentError, match="Wrong arguments for note: 'text' is a required"):
            await tools["note"]()
        with pytest.raises(ArgumentError, match="note: text: 3 is not of type 'string'"):
            await tools["note"](text=3)
        assert await tools["count"]() == "0"  # neither call reached the server
        assert await tools["picture"]() == "two dots\n[The tool returned an image, not text.]"

    in_rollout(write_server(tmp_path), use_tools)


def test_a_call_that_is_given_up_leaves_the_server_usable(tmp_path: Path) -> None:
    source = (
        "from mcp.server.mcpserver import MCPServer\nimport asyncio\ns = MCPServer('slow')\n"
        "@s.tool()\nasync def wait(seconds: float) -> str:\n    await asyncio.sleep(seconds)\n"
        "    return 'done'\ns.run()\n"
    )

    async def use_tools(tools: dict[str, Tool]) -> str:
        await tools["wait"](seconds=0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tools["wait"](seconds=3600), 0.1)
        return await tools["wait"](seconds=0)

    assert in_rollout(write_server(tmp_path, source), use_tools) == "done"


@pytest.mark.long
def test_variables_are_given_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES_KEY", "open sesame")
    command = write_server(tmp_path)

    async def use_tools(tools: dict[str, Tool]) -> str:
        return await tools["secret"]()

    assert in_rollout(command, use_tools) == "None"  # a server gets only the variables passed to it
    assert in_rollout(command, use_tools, env=["NOTES_KEY"]) == "open sesame"


@pytest.mark.parametrize(
    ("mcp", "settings", "complaint"),
    [
        ("", {}, "the key mcp of a tool is empty"),
        ("run 'it", {}, "close its quotation marks"),
        ("no-such-command x", {}, "cannot be used, because there is no command 'no-such-command'"),
        ("http://127.0.0.1:9/mcp", {}, "because there is no response from http://127.0.0.1:9/mcp"),
        ("http:///mcp", {}, "is not a URL of an MCP server"),
        ("http://[::1/mcp", {}, "is not a URL of an MCP server"),
        ("http://me:word@there/mcp", {}, "at there contains a name or a password"),
        ("https://there/mcp", {"env": ["HOME"]}, "started elsewhere, so remove env"),
        ("x", {"env": ["KEY=open sesame"]}, "write only the name 'KEY' in env"),
        ("x", {"env": ["NOT_SET_HERE"]}, "needs the environment variable NOT_SET_HERE: set it."),
        ("x", {"connection": "none"}, "must be 'rollout' or 'shared'"),
        ("x", {"prefx": "a"}, "has no setting 'prefx'; did you mean 'prefix'?"),
        (
            f'{sys.executable} -c "{DIES}"',
            {},
            "it ended, and the last line .* 'no licence'",
        ),
    ],
)
def test_what_cannot_be_used(mcp: str, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint.replace("?", r"\?")) as caught:
        listed(mcp, **settings)
    assert "\n" not in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_a_server_that_never_lists_its_tools() -> None:
    command = f'{sys.executable} -c "import time; time.sleep(3600)"'
    with pytest.raises(UserError, match=r"it did not list its tools within 0\.2 s"):
        asyncio.run(make(command).list_tools(0.2))


@pytest.mark.long
def test_a_name_that_a_server_lists_twice_is_its_first_tool(tmp_path: Path) -> None:
    tools = [
        {"name": "a", "description": text, "inputSchema": OBJECT} for text in ("first", "second")
    ]

    async def run() -> list[str]:
        server = make(write_lister(tmp_path, tools))
        return [tool.schema["function"]["description"] for tool in await server.list_tools(SECONDS)]

    assert asyncio.run(run()) == ["first"]


@pytest.mark.parametrize(
    ("x", "wrong"),
    [
        ({"type": "y"}, "'y' is not valid"),
        ({"$ref": "http://127.0.0.1:9/x"}, "refers to 'http://127.0.0.1:9/x', which is not in it"),
        ({"anyOf": [{"$ref": "other.json"}]}, "refers to 'other.json', which is not in it"),
        ({"$ref": "#/$defs/none"}, r"refers to '#/\$defs/none', which is not in it"),
        ({"$ref": "#/required/1"}, "refers to '#/required/1', which is not in it"),
    ],
)
def test_a_schema_that_is_none(x: dict[str, Any], wrong: str, tmp_path: Path) -> None:
    tools = [{"name": "a", "inputSchema": OBJECT | {"properties": {"x": x}}}]
    with pytest.raises(UserError, match=f"of 'a' by an invalid JSON schema .*{wrong}"):
        listed(write_lister(tmp_path, tools))


def call(command: str, **arguments: Any) -> str:
    """Call the tool `a` in a rollout."""
    return str(in_rollout(command, lambda tools: tools["a"](**arguments)))


def test_a_schema_that_leads_nowhere_is_told_when_it_is_used(tmp_path: Path) -> None:
    tools = [{"name": "a", "inputSchema": OBJECT | {"$ref": "#"}}]
    with pytest.raises(ArgumentError, match="it refers to itself without end"):
        call(write_lister(tmp_path, tools), x=1)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limit the CPU time of a schema validation to a moment."""
    schemas._get_pool.cache_clear()
    monkeypatch.setattr(schemas, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr("fieldcraft.tools.killable_pool.WALL_TIME_FACTOR", 1500)
    yield
    schemas._get_pool().close()
    schemas._get_pool.cache_clear()


@pytest.mark.usefixtures("impatient")
def test_a_pattern_that_matches_for_ever_ends_one_call(tmp_path: Path) -> None:
    x = {"type": "string", "pattern": "^(a+)+$"}
    tools = [{"name": "a", "inputSchema": OBJECT | {"properties": {"x": x}}}]
    command = write_lister(tmp_path, tools, {"content": [{"type": "text", "text": "done"}]})
    with pytest.raises(ArgumentError, match=r"cannot be compared .* in 0\.2 s"):
        call(command, x="a" * 40 + "!")
    assert call(command, x="aaa") == "done"


@pytest.mark.long
def test_answers_are_compared_with_the_schema_that_the_server_names(tmp_path: Path) -> None:
    output = OBJECT | {"properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = [{"name": "a", "inputSchema": OBJECT, "outputSchema": output}]
    result = {"content": [{"type": "text", "text": "3"}], "structuredContent": {"n": 3}}
    assert call(write_lister(tmp_path, tools, result)) == "3"
    result["structuredContent"] = {"n": "three"}
    with pytest.raises(ToolError, match="cannot be read: n: 'three' is not of type 'integer'"):
        call(write_lister(tmp_path, tools, result))


@pytest.mark.long
def test_more_tools_than_a_model_can_be_shown(tmp_path: Path) -> None:
    tools = [{"name": f"t{i}", "inputSchema": OBJECT} for i in range(1001)]
    command = write_lister(tmp_path, tools)
    with pytest.raises(UserError, match=r"lists 1001 tools, .* select the needed ones with 'only'"):
        listed(command)
    assert len(listed(command, only=["t7"])) == 1


@pytest.mark.parametrize("connection", ["rollout", pytest.param("shared", marks=pytest.mark.long)])
def test_a_server_at_a_url_that_goes_and_comes_back(connection: str, tmp_path: Path) -> None:
    async def use_tools(tools: dict[str, Tool]) -> list[str]:
        answers = [await tools["note"](text="a")]
        await asyncio.to_thread(end, processes[0])
        with pytest.raises(ToolUnavailableError, match="The server of count is not there"):
            await tools["count"]()
        processes.append(await asyncio.to_thread(start_http, tmp_path, port))
        return [*answers, await tools["note"](text="b")]

    with reserved_port() as port:
        processes = [start_http(tmp_path, port)]
        try:
            url = f"http://127.0.0.1:{port}/mcp"
            assert in_rollout(url, use_tools, connection=connection) == ["a", "b"]
        finally:
            for process in processes:
                end(process)


@pytest.mark.long
def test_the_time_server_of_the_protocol_s_authors() -> None:
    async def use_tools(tools: dict[str, Tool]) -> str:
        assert list(tools) == ["get_current_time", "convert_time"]
        with pytest.raises(ToolError, match="Atlantis"):
            await tools["get_current_time"](timezone="Atlantis/Centre")
        # neither zone has daylight saving time
        return await tools["convert_time"](
            source_timezone="Asia/Tokyo", time="16:30", target_timezone="Asia/Kolkata"
        )

    text = in_rollout(f"{sys.executable} -m mcp_server_time", use_tools)
    assert "T13:00:00+05:30" in json.loads(text)["target"]["datetime"]
