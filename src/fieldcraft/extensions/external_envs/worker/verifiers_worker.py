"""Worker that runs episodes of verifiers in its interpreter. It reads and writes lines of JSON.

The first line is `{"env": the config of verifiers, "client", "max_turns", "tasks"}`; the reply has
the tasks. Each further line requests an episode, `{"id", "task", "model", "temperature"}`, or
cancels one, `{"cancel": id}`. The reply to an episode has the same id, and the traces or an error.
The worker exits at the end of its input.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import (
    env_config_type,
    import_taskset,
    load_environment,
    resolve_env_config,
)

MAX_TASKS = 100_000  # limit for an infinite taskset
WriteMessage = Callable[[dict[str, Any]], None]


def resolve_config(handshake: dict[str, Any]) -> Any:
    """Return the config with fieldcraft's defaults: a plain conversation in a local process, with
    `max_turns` turns."""
    raw = dict(handshake["env"])
    taskset = raw["taskset"]["id"]
    if "agent" in env_config_type(taskset, raw.get("id") or "").model_fields:
        agent = dict(raw.get("agent") or {})
        agent.setdefault("runtime", {"type": "subprocess"})
        agent.setdefault("max_turns", handshake["max_turns"])
        if not has_own_harness(taskset):
            agent.setdefault("harness", {"id": "null"})
        raw["agent"] = agent
    return resolve_env_config(raw)


def has_own_harness(taskset: str) -> bool:
    """Return whether the package of a taskset has its own harness."""
    module = import_taskset(taskset)
    members = (getattr(module, name, None) for name in module.__all__)
    return any(isinstance(member, type) and issubclass(member, vf.Harness) for member in members)


def serialise_task(task: Any) -> dict[str, Any]:
    return {"key": task.key, "prompt": task.data.prompt_text, "name": task.data.name}


def serialise_trace(trace: Any) -> dict[str, Any]:
    """Return the record from which a trajectory is made: the graph of messages with their tokens,
    and the rewards."""
    node_indices = {id(node): index for index, node in enumerate(trace.nodes)}
    nodes = [
        {
            "parent": node.parent,
            "ids": node.token_ids,
            "mask": node.mask,
            "logprobs": node.logprobs,
            "text": get_text(node.message) if node.sampled else "",
            "sampled": node.sampled,
            **serialise_calls(node.message),
        }
        for node in trace.nodes
    ]
    return {
        "nodes": nodes,
        "branches": [
            [node_indices[id(node)] for node in branch.nodes]
            for branch in trace.branches
            if branch.trainable
        ],
        "trainable": trace.agent.trainable,
        "reward": trace.reward,
        "rewards": {name: r.score for name, r in trace.rewards.items() if r is not None},
        "ok": trace.ok,
        "stop": trace.stop_condition,
        "errors": [f"{error.type}: {error.message}" for error in trace.errors],
    }


def serialise_calls(message: Any) -> dict[str, Any]:
    """Return the calls of a message by id, and the id of the call whose result it is, if any."""
    if message.role == "tool":
        return {"calls": {}, "result_of": message.tool_call_id, "result": get_text(message)}
    calls = getattr(message, "tool_calls", None) or ()
    return {"calls": {call.id: [call.name, call.arguments] for call in calls}, "result_of": None}


def get_text(message: Any) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content or () if hasattr(part, "text"))


class EpisodeWorker:
    """Runner of concurrent episodes, which writes each result when the episode ends."""

    def __init__(self, env: Any, client: Any, tasks: list[Any], write: WriteMessage) -> None:
        self.env, self.client, self.tasks, self.write = env, client, tasks, write
        self.episode_tasks: dict[int, asyncio.Task[None]] = {}

    async def run_episode(self, request: dict[str, Any]) -> None:
        context = vf.ModelContext(
            client=self.client,
            model=request["model"],
            sampling=vf.SamplingConfig(temperature=request["temperature"]),
        )
        try:
            episode = await self.env.run_episode(self.tasks[request["task"]], context)
            response = {
                "traces": [serialise_trace(trace) for trace in episode.traces],
                "errors": [f"{error.type}: {error.message}" for error in episode.errors],
            }
        except Exception as error:  # noqa: BLE001 - a bad episode is data
            response = {"traces": [], "errors": [f"{type(error).__name__}: {error}"]}
        self.write({"id": request["id"], **response})

    def handle_line(self, line: bytes) -> None:
        request = json.loads(line)
        if "cancel" in request:
            task = self.episode_tasks.get(request["cancel"])
            if task is not None:
                task.cancel()
            return
        task = self.episode_tasks[request["id"]] = asyncio.create_task(self.run_episode(request))
        task.add_done_callback(lambda _: self.episode_tasks.pop(request["id"], None))


async def main(out: TextIO) -> None:
    reader = asyncio.StreamReader(limit=2**26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def write(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    handshake = json.loads(await reader.readline())
    env = load_environment(resolve_config(handshake))
    taskset = env.taskset
    tasks = list(taskset if taskset.bounded else itertools.islice(taskset, MAX_TASKS))
    tasks = tasks[: handshake["tasks"]]
    write({"tasks": [serialise_task(task) for task in tasks]})
    if handshake["client"] is None:
        return
    worker = EpisodeWorker(env, vf.TrainClientConfig(**handshake["client"]), tasks, write)
    async with env.serving():
        while line := await reader.readline():
            worker.handle_line(line)


if __name__ == "__main__":
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries is not part of a reply
    sys.path.insert(0, os.getcwd())
    asyncio.run(main(lines))
