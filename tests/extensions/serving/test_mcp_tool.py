"""A served agent as a tool, as the official MCP client uses it."""

import asyncio

from mcp import Client

from fieldcraft.extensions.serving.app import create_app
from fieldcraft.tools.serving import serve_in_thread
from serving_parts import SEARCHES, scripted


async def call(url: str, question: str):
    async with Client(f"{url}/mcp") as mcp:
        listed = (await mcp.list_tools()).tools
        return listed, await mcp.call_tool("ask", {"question": question})


def test_the_agent_is_one_tool():
    service, _ = scripted()
    with serve_in_thread(create_app(service)) as url:
        [tool], result = asyncio.run(call(url, "Who?"))
    assert (tool.name, tool.input_schema["required"]) == ("ask", ["question"])
    assert "search" in tool.description
    assert not result.is_error
    assert result.content[0].text == "Tarkovsky"


def test_what_goes_wrong_is_an_error_of_the_tool():
    service, engine = scripted([SEARCHES[0]])
    with serve_in_thread(create_app(service)) as url:
        _, broken = asyncio.run(call(url, "Who?"))
        _, long = asyncio.run(call(url, "long " * 500))
        service.closed = True
        _, stopped = asyncio.run(call(url, "Who?"))
    messages = [result.content[0].text for result in (broken, long, stopped)]
    assert all(result.is_error for result in (broken, long, stopped))
    assert "asked for one more" in messages[0]
    assert "shorten the question" in messages[1]
    assert "shutting down" in messages[2]
    assert engine.open == set()


def test_a_client_that_hangs_up_is_worked_for_no_more():
    service, engine = scripted()
    engine.go_on.clear()

    async def ask_and_leave(url: str) -> None:
        request = asyncio.create_task(call(url, "Who?"))
        while not engine.open:
            await asyncio.sleep(0.005)
        request.cancel()
        await asyncio.wait([request])
        while engine.open:  # the test hangs if the server is not notified
            await asyncio.sleep(0.005)

    with serve_in_thread(create_app(service)) as url:
        asyncio.run(asyncio.wait_for(ask_and_leave(url), 300))
    assert service.active_requests == 0
