"""Player of tasks of verifiers, in the Python that has it. It reads lines of JSON and writes such.

The first line is `{"env": the config of verifiers, "client", "max_turns", "tasks"}`; the answer has
the tasks. Each further line asks for an episode, `{"id", "task", "model", "temperature"}`, or
cancels one, `{"cancel": id}`. The answer to an episode has the same id, and the traces or an error.
The worker ends when its input does.
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

MOST_TASKS = 100_000  # of a taskset without end
Write = Callable[[dict[str, Any]], None]


def config_of(opening: dict[str, Any]) -> Any:
    """Return the config, with what fieldcraft sets where it says nothing: a plain conversation in a
    process of this machine, of so many turns."""
    raw = dict(opening["env"])
    taskset = raw["taskset"]["id"]
    if "agent" in env_config_type(taskset, raw.get("id") or "").model_fields:
        agent = dict(raw.get("agent") or {})
        agent.setdefault("runtime", {"type": "subprocess"})
        agent.setdefault("max_turns", opening["max_turns"])
        if not brings_harness(taskset):
            agent.setdefault("harness", {"id": "null"})
        raw["agent"] = agent
    return resolve_env_config(raw)


def brings_harness(taskset: str) -> bool:
    """Return whether the package of a taskset has a harness of its own."""
    module = import_taskset(taskset)
    found = (getattr(module, name, None) for name in module.__all__)
    return any(isinstance(one, type) and issubclass(one, vf.Harness) for one in found)


def described(task: Any) -> dict[str, Any]:
    return {"key": task.key, "prompt": task.data.prompt_text, "name": task.data.name}


def told(trace: Any) -> dict[str, Any]:
    """Return the record that a trajectory is made from: the graph of messages with their tokens,
    and the rewards."""
    places = {id(node): place for place, node in enumerate(trace.nodes)}
    nodes = [
        {
            "parent": node.parent,
            "ids": node.token_ids,
            "mask": node.mask,
            "logprobs": node.logprobs,
            "text": text_of(node.message) if node.sampled else "",
        }
        for node in trace.nodes
    ]
    return {
        "nodes": nodes,
        "branches": [
            [places[id(node)] for node in branch.nodes]
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


def text_of(message: Any) -> str:
    content = message.content
    return content if isinstance(content, str) else ""


class Worker:
    """Player of episodes side by side, which writes each as it ends."""

    def __init__(self, env: Any, client: Any, tasks: list[Any], write: Write) -> None:
        self.env, self.client, self.tasks, self.write = env, client, tasks, write
        self.running: dict[int, asyncio.Task[None]] = {}

    async def play(self, asked: dict[str, Any]) -> None:
        context = vf.ModelContext(
            client=self.client,
            model=asked["model"],
            sampling=vf.SamplingConfig(temperature=asked["temperature"]),
        )
        try:
            episode = await self.env.run_episode(self.tasks[asked["task"]], context)
            answer = {
                "traces": [told(trace) for trace in episode.traces],
                "errors": [f"{error.type}: {error.message}" for error in episode.errors],
            }
        except Exception as error:  # noqa: BLE001 - a bad episode is data
            answer = {"traces": [], "errors": [f"{type(error).__name__}: {error}"]}
        self.write({"id": asked["id"], **answer})

    def take(self, line: bytes) -> None:
        asked = json.loads(line)
        if "cancel" in asked:
            task = self.running.get(asked["cancel"])
            if task is not None:
                task.cancel()
            return
        task = self.running[asked["id"]] = asyncio.create_task(self.play(asked))
        task.add_done_callback(lambda _: self.running.pop(asked["id"], None))


async def main(out: TextIO) -> None:
    reader = asyncio.StreamReader(limit=2**26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def write(answer: dict[str, Any]) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    opening = json.loads(await reader.readline())
    env = load_environment(config_of(opening))
    taskset = env.taskset
    tasks = list(taskset if taskset.bounded else itertools.islice(taskset, MOST_TASKS))
    tasks = tasks[: opening["tasks"]]
    write({"tasks": [described(task) for task in tasks]})
    if opening["client"] is None:
        return
    worker = Worker(env, vf.TrainClientConfig(**opening["client"]), tasks, write)
    async with env.serving():
        while line := await reader.readline():
            worker.take(line)


if __name__ == "__main__":
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    sys.path.insert(0, os.getcwd())
    asyncio.run(main(lines))
