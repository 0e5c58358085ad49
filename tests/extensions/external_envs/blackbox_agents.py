"""Agents without knowledge of the training, as third parties write them."""

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

ARRIVED = threading.Event()  # set when a request has reached a slow engine
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
    http = httpx.AsyncClient(verify=False)  # loading certificates takes longer than a rollout
    return AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, http_client=http)


async def send(api: AsyncOpenAI, messages: list, **more: object) -> str:
    """Continue a conversation and append the next message to it."""
    done = await api.chat.completions.create(model="policy", messages=messages, **more)
    message = done.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    return message.content or ""


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def converses(task: fc.Task, base_url: str) -> str:
    """Ask three questions, one after the other."""
    messages: list = []
    async with client(base_url) as api:
        for text in (task.question, "And then?", "Sure <|im_end|>?"):
            messages.append(user(text))
            last = await send(api, messages)
    return last


async def edits(task: fc.Task, base_url: str) -> None:
    """Shorten the conversation, so that the second request does not start like the first."""
    async with client(base_url) as api:
        messages = [user(task.question)]
        await send(api, messages)
        await send(api, [user("Short."), *messages[1:], user("And then?")])


async def asks_several(task: fc.Task, base_url: str) -> float:
    """Run two parts of an agent concurrently, and continue with one of them."""
    async with client(base_url) as api:
        first, second = [user("One?")], [user("Two?")]
        await asyncio.gather(send(api, first), send(api, second))
        await send(api, [*first, user("More?")])
    return 0.5


async def asks_again(task: fc.Task, base_url: str) -> None:
    async with client(base_url) as api:
        for _ in range(2):
            await send(api, [user(task.question)])


async def calls_on(task: fc.Task, base_url: str) -> str:
    """Return tool results for two turns with calls; the calls of the last turn are not executed."""
    count = 0
    async with client(base_url) as api:
        messages: list = [user(task.question)]
        for _ in range(2):
            await send(api, messages, tools=[TOOL])
            for call in messages[-1]["tool_calls"]:
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(count)})
                count += 1
        await send(api, messages, tools=[TOOL])
        messages.append(user("And then?"))
        return await send(api, messages, tools=[TOOL])


async def calls_tools(task: fc.Task, base_url: str) -> str:
    async with client(base_url) as api:
        messages: list = [user(task.question)]
        await send(api, messages, tools=[TOOL])
        for call in messages[-1]["tool_calls"]:
            found = f"{call['function']['name']} found {call['function']['arguments']}"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": found})
        return await send(api, messages, tools=[TOOL])


async def posts(task: fc.Task, base_url: str) -> None:
    async with client(base_url) as api:
        await send(api, [user(task.question)])
    async with httpx.AsyncClient() as http:
        place = base_url.removesuffix("/v1") + "/reward"
        assert (await http.post(place, json={"reward": "much"})).status_code == 400
        (await http.post(place, json={"reward": 0.75})).raise_for_status()


async def wants_little(task: fc.Task, base_url: str) -> None:
    async with client(base_url) as api:
        await send(api, [user(task.question)], max_tokens=3)


def plainly(task: fc.Task, base_url: str) -> bool:
    """Call the model synchronously, with streaming and a stop string."""
    with OpenAI(base_url=base_url, api_key="none") as api:
        assert [model.id for model in api.models.list()] == ["policy"]
        stream = api.chat.completions.create(
            model="policy", messages=[user(task.question)], stop=["!"], stream=True
        )
        text = "".join(c.choices[0].delta.content or "" for c in stream)  # as in OpenAI's guide
    return text == "Oslo"


async def asks_as_others_do(task: fc.Task, base_url: str) -> str:
    """Send neutral values, request the usage of a stream, and look up the model by name."""
    neutral = {
        **dict.fromkeys(("tools", "stop", "functions", "logprobs", "n", "stream_options")),
        **{"function_call": "auto", "tool_choice": "none", "response_format": {"type": "text"}},
    }
    messages = []
    async with httpx.AsyncClient(base_url=base_url) as http:
        body = {"model": "policy", "messages": [user(task.question)]}
        for more in (neutral, {"n": 1, "logprobs": False, "stop": [], "tools": [], "seed": 3}):
            reply = await http.post("/chat/completions", json={**body, **more})
            messages.append(reply.json()["choices"][0]["message"]["content"])
        for options in ({}, {"stream_options": {"include_usage": True}}):
            reply = await http.post("/chat/completions", json={**body, "stream": True, **options})
            messages.append(reply.text.count('"usage"'))
        for name in ("policy", "other"):
            messages.append((await http.get(f"/models/{name}")).status_code)
    return json.dumps(messages)


async def chooses(task: fc.Task, base_url: str) -> str:
    """Send a tool that must not be called, a tool that must be called, and a request for JSON."""
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {}}}
    outcomes = []
    async with client(base_url) as api:
        for more in (
            {"tools": [TOOL], "tool_choice": "none"},
            {"tools": [TOOL], "tool_choice": "auto"},
            {"tools": [TOOL], "tool_choice": "required"},
            {"response_format": schema},
            {"extra_body": {"guided_regex": "a"}},
        ):
            messages: list = [user(task.question)]
            try:
                await send(api, messages, **more)
            except BadRequestError as error:
                outcomes.append(error.body["message"])  # type: ignore[index]
            else:
                outcomes.append(",".join(sorted(messages[-1])))
    return "\n".join(outcomes)


async def sets_the_template(task: fc.Task, base_url: str) -> str:
    """Send variables of the chat template: one that it has, and some that cannot be set."""
    messages = []
    async with client(base_url) as api:
        for variables in ({"mood": "calm"}, {"mod": 1}, {"messages": []}, {"mood": "<|im_end|>"}):
            try:
                extra = {"chat_template_kwargs": variables}
                messages.append(await send(api, [user(task.question)], extra_body=extra))
            except BadRequestError as error:
                messages.append(error.body["message"])  # type: ignore[index]
    return "\n".join(messages)


async def answers_out_of_order(task: fc.Task, base_url: str) -> str:
    """Send results in another order than the calls, and a request with an unknown call id."""
    async with client(base_url) as api:
        messages: list = [user(task.question)]
        await send(api, messages, tools=[TOOL])
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": call["function"]["arguments"]}
            for call in reversed(messages[-1]["tool_calls"])
        ]
        await send(api, messages + results, tools=[TOOL])
        results[0]["tool_call_id"] = "another"
        try:
            await send(api, messages + results, tools=[TOOL])
        except BadRequestError as error:
            return error.body["message"]  # type: ignore[index]
    return "accepted"


async def speaks_as_before(task: fc.Task, base_url: str) -> None:
    """Send functions, which preceded tools in OpenAI's interface."""
    call = {"name": "search", "arguments": '{"query": "Ada"}'}
    async with client(base_url) as api:
        messages = [
            user(task.question),
            {"role": "assistant", "content": None, "function_call": call},
            {"role": "function", "name": "search", "content": "She is."},
        ]
        await send(api, messages)


async def leaves(task: fc.Task, base_url: str) -> float:
    """Cancel the last request before it is answered."""
    async with client(base_url) as api:
        request = asyncio.create_task(send(api, [user("Slow?")]))
        while not ARRIVED.is_set():
            await asyncio.sleep(0.005)
        request.cancel()
        await asyncio.wait([request])
    return 1.0


async def fails(task: fc.Task, base_url: str) -> None:
    async with client(base_url) as api:
        await send(api, [user(task.question)])
    raise RuntimeError("no plan")


async def sleeps(task: fc.Task, base_url: str) -> None:
    await asyncio.sleep(60)


async def returns_much(task: fc.Task, base_url: str) -> object:
    return [1, 2]


async def lies(task: fc.Task, base_url: str) -> str:
    """Send requests that no gateway can answer."""
    bodies = [
        {"messages": []},
        {"messages": [user("x")], "n": 2},
        {"messages": [user("x")], "logprobs": True},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [user("x")], "tools": [{**TOOL, "description": "<|im_end|>"}]},
    ]
    messages = []
    async with httpx.AsyncClient() as http:
        for body in bodies:
            reply = await http.post(f"{base_url}/chat/completions", json={"model": "m", **body})
            assert reply.status_code == 400
            messages.append(reply.json()["error"]["message"])
        other = base_url.replace("/v1", "x/v1")
        reply = await http.post(f"{other}/chat/completions", json={"messages": [user("x")]})
        assert reply.status_code == 404
    return "\n".join(messages)


async def partners(task: fc.Task, base_url: str) -> float:
    """Run a framework's agent on two successive letters.

    An answer is correct if it starts with the partner of the letter.
    """
    async with client(base_url) as api:
        model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=api))
        agent, history, right = Agent(model), [], 0
        for letter in task.question:
            try:
                done = await agent.run(letter, message_history=history)
            except AgentRunError:  # the framework rejects an empty answer
                break
            history = done.all_messages()
            right += done.output.startswith(PARTNERS[letter])
    return right / len(task.question)


def pays(task: fc.Task, base_url: str) -> float:
    """Return the reward named by the question."""
    return float(task.question)


async def goes_on(task: fc.Task, base_url: str) -> str:
    """Ask until a request is rejected, then through the other interfaces. Return status and error
    of all of them."""
    asked = {"model": "policy", "messages": [user(task.question)]}
    rows: list[tuple[int, dict[str, object]]] = []
    async with httpx.AsyncClient(base_url=base_url, verify=False) as http:
        for route, body in (
            ("chat/completions", asked),
            ("responses", {"model": "policy", "input": task.question}),
            ("messages", asked | {"max_tokens": 9}),
        ):
            while (reply := await http.post(route, json=body)).is_success:
                asked["messages"] += [reply.json()["choices"][0]["message"], user("And then?")]
            rows.append((reply.status_code, reply.json()["error"]))
    return json.dumps(rows)
