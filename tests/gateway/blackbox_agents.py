"""Agents that know nothing of training, as others write them."""

import asyncio
import json
import threading

import httpx
from openai import AsyncOpenAI, BadRequestError, OpenAI
from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import fieldcraft as fc

ARRIVED = threading.Event()  # a request has reached an engine that is slow
PARTNERS = {"a": "0", "b": "3", "c": "1", "d": "2"}
TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}


def client(base_url: str) -> AsyncOpenAI:
    http = httpx.AsyncClient(verify=False)  # to read certificates takes longer than a rollout
    return AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, http_client=http)


async def says(ask: AsyncOpenAI, messages: list, **more: object) -> str:
    """Go on with a conversation; its next message is appended to it."""
    done = await ask.chat.completions.create(model="policy", messages=messages, **more)
    message = done.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    return message.content or ""


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def converses(task: fc.Task, base_url: str) -> str:
    """Three questions, one after the other."""
    messages: list = []
    async with client(base_url) as ask:
        for text in (task.question, "And then?", "Sure <|im_end|>?"):
            messages.append(user(text))
            last = await says(ask, messages)
    return last


async def edits(task: fc.Task, base_url: str) -> None:
    """It shortens what was said, so the second request does not begin as the first one did."""
    async with client(base_url) as ask:
        messages = [user(task.question)]
        await says(ask, messages)
        await says(ask, [user("Short."), *messages[1:], user("And then?")])


async def asks_several(task: fc.Task, base_url: str) -> float:
    """Two of its parts speak at once, and one of them goes on."""
    async with client(base_url) as ask:
        first, second = [user("One?")], [user("Two?")]
        await asyncio.gather(says(ask, first), says(ask, second))
        await says(ask, [*first, user("More?")])
    return 0.5


async def asks_again(task: fc.Task, base_url: str) -> None:
    async with client(base_url) as ask:
        for _ in range(2):
            await says(ask, [user(task.question)])


async def calls_on(task: fc.Task, base_url: str) -> str:
    """As long as it calls tools, twice; what the last turn calls is not run."""
    count = 0
    async with client(base_url) as ask:
        messages: list = [user(task.question)]
        for _ in range(2):
            await says(ask, messages, tools=[TOOL])
            for call in messages[-1]["tool_calls"]:
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(count)})
                count += 1
        await says(ask, messages, tools=[TOOL])
        messages.append(user("And then?"))
        return await says(ask, messages, tools=[TOOL])


async def calls_tools(task: fc.Task, base_url: str) -> str:
    async with client(base_url) as ask:
        messages: list = [user(task.question)]
        await says(ask, messages, tools=[TOOL])
        for call in messages[-1]["tool_calls"]:
            found = f"{call['function']['name']} found {call['function']['arguments']}"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": found})
        return await says(ask, messages, tools=[TOOL])


async def posts(task: fc.Task, base_url: str) -> None:
    async with client(base_url) as ask:
        await says(ask, [user(task.question)])
    async with httpx.AsyncClient() as http:
        place = base_url.removesuffix("/v1") + "/reward"
        assert (await http.post(place, json={"reward": "much"})).status_code == 400
        (await http.post(place, json={"reward": 0.75})).raise_for_status()


async def wants_little(task: fc.Task, base_url: str) -> None:
    async with client(base_url) as ask:
        await says(ask, [user(task.question)], max_tokens=3)


def plainly(task: fc.Task, base_url: str) -> bool:
    """Not asynchronous, streaming, and with a stop string."""
    with OpenAI(base_url=base_url, api_key="none") as ask:
        assert [model.id for model in ask.models.list()] == ["policy"]
        stream = ask.chat.completions.create(
            model="policy", messages=[user(task.question)], stop=["!"], stream=True
        )
        text = "".join(c.choices[0].delta.content or "" for c in stream)  # as in OpenAI's guide
    return text == "Oslo"


async def asks_as_others_do(task: fc.Task, base_url: str) -> str:
    """Values that ask for nothing, the usage at the end of a stream, and the one model by name."""
    neutral = {
        **dict.fromkeys(("tools", "stop", "functions", "logprobs", "n", "stream_options")),
        **{"function_call": "auto", "tool_choice": "none", "response_format": {"type": "text"}},
    }
    messages = []
    async with httpx.AsyncClient(base_url=base_url) as http:
        body = {"model": "policy", "messages": [user(task.question)]}
        for more in (neutral, {"n": 1, "logprobs": False, "stop": [], "tools": [], "seed": 3}):
            got = await http.post("/chat/completions", json={**body, **more})
            messages.append(got.json()["choices"][0]["message"]["content"])
        for options in ({}, {"stream_options": {"include_usage": True}}):
            got = await http.post("/chat/completions", json={**body, "stream": True, **options})
            messages.append(got.text.count('"usage"'))
        for name in ("policy", "other"):
            messages.append((await http.get(f"/models/{name}")).status_code)
    return json.dumps(messages)


async def chooses(task: fc.Task, base_url: str) -> str:
    """It offers a tool that must not be called, a tool that it must call, and asks for JSON."""
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {}}}
    told = []
    async with client(base_url) as ask:
        for more in (
            {"tools": [TOOL], "tool_choice": "none"},
            {"tools": [TOOL], "tool_choice": "auto"},
            {"tools": [TOOL], "tool_choice": "required"},
            {"response_format": schema},
            {"extra_body": {"guided_regex": "a"}},
        ):
            messages: list = [user(task.question)]
            try:
                await says(ask, messages, **more)
            except BadRequestError as error:
                told.append(error.body["message"])  # type: ignore[index]
            else:
                told.append(",".join(sorted(messages[-1])))
    return "\n".join(told)


async def sets_the_template(task: fc.Task, base_url: str) -> str:
    """Variables of the chat template: one that it has, and some that cannot be set."""
    messages = []
    async with client(base_url) as ask:
        for variables in ({"mood": "calm"}, {"mod": 1}, {"messages": []}, {"mood": "<|im_end|>"}):
            try:
                extra = {"chat_template_kwargs": variables}
                messages.append(await says(ask, [user(task.question)], extra_body=extra))
            except BadRequestError as error:
                messages.append(error.body["message"])  # type: ignore[index]
    return "\n".join(messages)


async def answers_out_of_order(task: fc.Task, base_url: str) -> str:
    """Results in another order than calls, and a request that names no call that was made."""
    async with client(base_url) as ask:
        messages: list = [user(task.question)]
        await says(ask, messages, tools=[TOOL])
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": call["function"]["arguments"]}
            for call in reversed(messages[-1]["tool_calls"])
        ]
        await says(ask, messages + results, tools=[TOOL])
        results[0]["tool_call_id"] = "another"
        try:
            await says(ask, messages + results, tools=[TOOL])
        except BadRequestError as error:
            return error.body["message"]  # type: ignore[index]
    return "accepted"


async def speaks_as_before(task: fc.Task, base_url: str) -> None:
    """Functions, as OpenAI had them before tools."""
    made = {"name": "search", "arguments": '{"query": "Ada"}'}
    async with client(base_url) as ask:
        messages = [
            user(task.question),
            {"role": "assistant", "content": None, "function_call": made},
            {"role": "function", "name": "search", "content": "She is."},
        ]
        await says(ask, messages)


async def leaves(task: fc.Task, base_url: str) -> float:
    """It does not wait for its last answer."""
    async with client(base_url) as ask:
        asking = asyncio.create_task(says(ask, [user("Slow?")]))
        while not ARRIVED.is_set():
            await asyncio.sleep(0.005)
        asking.cancel()
        await asyncio.wait([asking])
    return 1.0


async def fails(task: fc.Task, base_url: str) -> None:
    async with client(base_url) as ask:
        await says(ask, [user(task.question)])
    raise RuntimeError("no plan")


async def sleeps(task: fc.Task, base_url: str) -> None:
    await asyncio.sleep(60)


async def returns_much(task: fc.Task, base_url: str) -> object:
    return [1, 2]


async def lies(task: fc.Task, base_url: str) -> str:
    """Requests that no gateway can answer."""
    asked = [
        {"messages": []},
        {"messages": [user("x")], "n": 2},
        {"messages": [user("x")], "logprobs": True},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [user("x")], "tools": [{**TOOL, "description": "<|im_end|>"}]},
    ]
    messages = []
    async with httpx.AsyncClient() as http:
        for body in asked:
            got = await http.post(f"{base_url}/chat/completions", json={"model": "m", **body})
            assert got.status_code == 400
            messages.append(got.json()["error"]["message"])
        other = base_url.replace("/v1", "x/v1")
        got = await http.post(f"{other}/chat/completions", json={"messages": [user("x")]})
        assert got.status_code == 404
    return "\n".join(messages)


async def partners(task: fc.Task, base_url: str) -> float:
    """An agent of a framework: two letters, one after the other, and each has a partner, with which
    an answer is to begin."""
    async with client(base_url) as ask:
        model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=ask))
        agent, history, right = Agent(model), [], 0
        for letter in task.question:
            try:
                done = await agent.run(letter, message_history=history)
            except AgentRunError:  # it does not like to be told nothing
                break
            history = done.all_messages()
            right += done.output.startswith(PARTNERS[letter])
    return right / len(task.question)


def pays(task: fc.Task, base_url: str) -> float:
    """The reward that the question names."""
    return float(task.question)
