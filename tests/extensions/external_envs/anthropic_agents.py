"""Agents on Anthropic's SDK without knowledge of the training, as third parties write them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import httpx2
from anthropic import APIStatusError, AsyncAnthropic
from anthropic.types import Message
from blackbox_agents import PARTNERS

import fieldcraft as fc

TOOL: Any = {
    "name": "search",
    "description": "Search.",
    "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}},
}
IMAGE = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
SYSTEM: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]


@asynccontextmanager
async def client(base_url: str) -> AsyncIterator[AsyncAnthropic]:
    root = base_url.removesuffix("/v1")
    http = httpx2.AsyncClient(verify=False)  # loading certificates takes longer than a rollout
    async with AsyncAnthropic(
        base_url=root, api_key="none", max_retries=0, http_client=http
    ) as api:
        yield api


async def send(api: AsyncAnthropic, messages: list[Any], **more: Any) -> Message:
    """Continue a conversation and append the next message to it, as Anthropic's guide does."""
    message = await api.messages.create(
        model="policy", messages=messages, **{"max_tokens": 500, **more}
    )
    messages.append({"role": "assistant", "content": message.content})
    return message


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def results(message: Message, **more: Any) -> list[Any]:
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": f"found {block.input}", **more}
        for block in message.content
        if block.type == "tool_use"
    ]


async def converses(task: fc.Task, base_url: str) -> str:
    async with client(base_url) as api:
        messages = [user(task.question)]
        await send(api, messages, system=SYSTEM)
        messages.append(user([{"type": "text", "text": "And then?"}]))
        older = {"temperature": 0.1, "top_k": 3}  # the SDK had arguments for them
        message = await send(api, messages, system=SYSTEM, extra_body=older)
    assert message.content[0].type == "text"
    return message.content[0].text


async def calls_tools(task: fc.Task, base_url: str) -> str:
    """Run the loop of a tool, in which the first result is an error."""
    async with client(base_url) as api:
        messages = [user(task.question)]
        message = await send(api, messages, tools=[TOOL])
        assert message.stop_reason == "tool_use", message
        for is_error in (True, False):
            messages.append(user(results(message, is_error=is_error)))
            message = await send(api, messages, tools=[TOOL], tool_choice={"type": "auto"})
    assert message.content[-1].type == "text"
    return message.content[-1].text


async def thinks(task: fc.Task, base_url: str) -> str:
    """Return what a thought with a call looks like, once shown and once omitted."""
    shown = []
    async with client(base_url) as api:
        messages = [user(task.question)]
        for display in ("summarized", "omitted", "summarized"):
            thinking = {"type": "adaptive", "display": display}
            message = await send(api, messages, tools=[TOOL], thinking=thinking)
            found = results(message)
            messages.append(user(found or "And then?"))
            shown += [block.model_dump(exclude={"signature"}) for block in message.content]
        shown.append(message.stop_reason)
    return json.dumps(shown)


async def edits_a_thought(task: fc.Task, base_url: str) -> None:
    async with client(base_url) as api:
        messages = [user(task.question)]
        message = await send(api, messages, thinking={"type": "enabled", "budget_tokens": 1024})
        thought, *rest = [block.model_dump() for block in message.content]
        messages[1:] = [{"role": "assistant", "content": [{**thought, "thinking": "No."}, *rest]}]
        await send(api, [*messages, user("And then?")])


async def streams(task: fc.Task, base_url: str) -> str:
    """Return the names of the events of a stream, and its accumulated message."""
    async with (
        client(base_url) as api,
        api.messages.stream(
            model="policy",
            max_tokens=500,
            messages=[user(task.question)],
            tools=[TOOL],
            stop_sequences=["!"],
            thinking={"type": "adaptive"},
        ) as stream,
    ):
        names = [event.type async for event in stream]
        message = await stream.get_final_message()
    shown = message.model_dump(include={"content", "stop_reason", "stop_sequence", "usage"})
    return json.dumps([names, shown], default=str)


async def counts_tokens(task: fc.Task, base_url: str) -> str:
    async with client(base_url) as api:
        asked = {"model": "policy", "messages": [user(task.question)], "system": "Be brief."}
        counted = await api.messages.count_tokens(**asked)
        message = await api.messages.create(max_tokens=3, **asked)
    counts = [counted.input_tokens, message.usage.input_tokens, message.usage.output_tokens]
    return json.dumps([*counts, message.stop_reason])


async def asks_a_function_url(task: fc.Task, base_url: str) -> None:
    """Use the base_url of an agent function unchanged."""
    async with AsyncAnthropic(base_url=base_url, api_key="none", max_retries=0) as api:
        await send(api, [user(task.question)])


REFUSED: dict[str, Any] = {
    "'image'": {"messages": [user([{"type": "image", "source": IMAGE}])]},
    "'document'": {"messages": [user([{"type": "document", "source": {}}])]},
    "cannot be prefilled": {"messages": [user("Who?"), {"role": "assistant", "content": "I"}]},
    "'bash_20250124'": {"tools": [{"type": "bash_20250124", "name": "bash"}]},
    "write the type 'auto'": {"tools": [TOOL], "tool_choice": {"type": "any"}},
    "disable_parallel_tool_use": {
        "tools": [TOOL],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    },
    "'container'": {"extra_body": {"container": "c"}},
    "constrained decoding": {
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    },
    "tool_use_id of its call": {
        "messages": [user([{"type": "tool_result", "tool_use_id": "x", "content": "y"}])]
    },
    "results of a turn first": {
        "messages": [
            user("Who?"),
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "x", "name": "search", "input": {}}],
            },
            user(
                [
                    {"type": "text", "text": "Here."},
                    {"type": "tool_result", "tool_use_id": "x", "content": "y"},
                ]
            ),
        ]
    },
    "special token": {"tools": [{**TOOL, "description": "<|im_end|>"}]},
    "max_tokens": {"max_tokens": 0},
    "messages": {"messages": []},
}


async def is_refused(task: fc.Task, base_url: str) -> str:
    """Return status, type and message of the SDK's error for each bad request."""
    rows = []
    async with client(base_url) as api:
        for more in REFUSED.values():
            body = {"max_tokens": 9, "messages": [user("Who?")], **more}
            try:
                await api.messages.create(model="policy", **body)
            except APIStatusError as error:
                rows.append([error.status_code, error.type, error.body["error"]["message"]])
            else:
                rows.append([200, "", "accepted"])
    async with client(base_url.replace("/v1", "x/v1")) as api:
        try:
            await send(api, [user("Who?")])
        except APIStatusError as error:
            rows.append([error.status_code, error.type, str(error.body["error"]["message"])])
    async with httpx.AsyncClient() as http:
        reply = await http.post(f"{base_url}/messages", content=b"{")
        rows.append([reply.status_code, reply.json()["error"]["type"], reply.json()["type"]])
    return json.dumps(rows)


async def partners(task: fc.Task, base_url: str) -> float:
    """Ask about successive letters. An answer is correct if it starts with the letter's partner."""
    messages: list[Any] = []
    right = 0
    async with client(base_url) as api:
        for letter in task.question:
            messages.append(user(letter))
            message = await send(api, messages)
            assert message.content[0].type == "text"
            right += message.content[0].text.startswith(PARTNERS[letter])
    return right / len(task.question)
