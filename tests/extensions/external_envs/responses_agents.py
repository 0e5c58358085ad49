"""Agents on the Responses interface of OpenAI's SDK, as third parties write them."""

import json
from typing import Any

from blackbox_agents import client
from openai import APIStatusError, AsyncOpenAI
from openai.types.responses import Response

import fieldcraft as fc

TOOL: Any = {
    "type": "function",
    "name": "search",
    "description": "Search.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    "strict": True,
}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def send(api: AsyncOpenAI, items: list[Any], **more: Any) -> Response:
    """Continue a conversation, and append the items of the next turn to it."""
    response = await api.responses.create(model="policy", input=items, **more)
    items += [item.model_dump(exclude_none=True) for item in response.output]
    return response


async def converses(task: fc.Task, base_url: str) -> str:
    async with client(base_url) as api:
        first = await api.responses.create(
            model="policy", input=task.question, instructions="Be brief.", temperature=0.1
        )
        items = [user(task.question), *first.output, user("And then?")]
        second = await send(api, items, instructions="Be brief.", store=False)
    return second.output_text


async def calls_tools(task: fc.Task, base_url: str) -> str:
    async with client(base_url) as api:
        items: list[Any] = [user(task.question)]
        response = await send(api, items, tools=[TOOL], include=["reasoning.encrypted_content"])
        for item in response.output:
            if item.type == "function_call":
                found = f"found {json.loads(item.arguments)}"
                output = [{"type": "input_text", "text": found}]
                items.append(
                    {"type": "function_call_output", "call_id": item.call_id, "output": output}
                )
        last = await send(api, items, tools=[TOOL])
    shown = [item.type for item in response.output], last.output_text, last.status
    return json.dumps(shown)


async def hides_thoughts(task: fc.Task, base_url: str) -> None:
    """Return the seal of a thought without its text, as clients do that hide it."""
    async with client(base_url) as api:
        items: list[Any] = [user(task.question)]
        await send(api, items)
        del items[1]["content"]
        await send(api, [*items, user("And then?")])


async def streams(task: fc.Task, base_url: str) -> str:
    async with (
        client(base_url) as api,
        api.responses.stream(
            model="policy", input=task.question, tools=[{**TOOL, "strict": False}]
        ) as stream,
    ):
        names = [event.type async for event in stream]
        response = await stream.get_final_response()
    return json.dumps([names, response.model_dump(include={"output", "status", "usage"})])


async def is_cut(task: fc.Task, base_url: str) -> str:
    async with client(base_url) as api:
        response = await api.responses.create(
            model="policy", input=task.question, max_output_tokens=3
        )
    assert response.usage is not None
    return json.dumps([response.status, response.usage.output_tokens])


IMAGE = [{"type": "input_image", "image_url": "x", "detail": "auto"}]
REFUSED: dict[str, Any] = {
    "'input_image'": {"input": [{"role": "user", "content": IMAGE}]},
    "has the type 'item_reference'": {"input": [{"type": "item_reference", "id": "x"}]},
    "tools of the type 'web_search'": {"tools": [{"type": "web_search"}]},
    "'tool_choice'": {"tools": [TOOL], "tool_choice": "required"},
    "'text'": {"text": {"format": {"type": "json_object"}}},
    "'previous_response_id'": {"previous_response_id": "resp_0"},
    "call_id of its call": {
        "input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]
    },
    "input": {"input": []},
}


async def is_refused(task: fc.Task, base_url: str) -> str:
    rows = []
    async with client(base_url) as api:
        for more in REFUSED.values():
            try:
                await api.responses.create(**{"model": "policy", "input": "Who?", **more})
            except APIStatusError as error:
                rows.append([error.status_code, error.body["message"]])  # type: ignore[index]
            else:
                rows.append([200, "accepted"])
    return json.dumps(rows)
