"""Rollouts of programs that call the policy from machines of their own."""

import asyncio
import textwrap
from typing import Any

import pytest
from backend_parts import SETTINGS
from command_parts import COMMAND_BACKENDS
from container_images import list_containers

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.base import isolate_failures
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.external_envs.command import CommandEnvironment
from fieldcraft.types import Author, Status, Task, Trajectory

TOKENIZER = tiny_tokenizer()
# It asks twice, the second time with the answer so far, as a stream.
AGENT = """\
import json, os, urllib.request

def ask(messages, stream):
    body = {"model": "policy", "messages": messages, "stream": stream}
    headers = {"Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    asked = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return urllib.request.urlopen(asked)

task = json.load(open(os.environ["FIELDCRAFT_TASK"]))
assert input() == task["question"]
messages = [{"role": "user", "content": task["question"]}]
first = json.load(ask(messages, False))["choices"][0]["message"]
messages += [{"role": "assistant", "content": first["content"]}]
messages += [{"role": "user", "content": "Sure?"}]
pieces = []
for line in ask(messages, True):
    if line.startswith(b"data: {"):
        for choice in json.loads(line[6:])["choices"]:
            pieces.append(choice["delta"].get("content") or "")
with open("answer.txt", "w") as file:
    file.write(first["content"] + "/" + "".join(pieces))
with open("reward.txt", "w") as file:
    file.write("0.25")
"""


@pytest.fixture(params=COMMAND_BACKENDS[1:])
def backend(request) -> dict[str, Any]:
    return {"name": request.param, **SETTINGS[request.param](request)}


def run_rollouts(environment: CommandEnvironment, number: int = 1) -> list[Trajectory]:
    budget = BudgetConfig.model_validate({"max_context_tokens": 600})
    dialect = make_dialect("hermes", TOKENIZER)

    async def run_all() -> list[Trajectory]:
        async with isolate_failures(environment, dialect, budget) as opened:
            policies = [Policy(engine=ScriptedEngine(TOKENIZER, ["Ada", "Yes"])) for _ in range(2)]
            return await asyncio.gather(
                *(
                    opened.run(Task("q", "Who?", ("Ada",)), policy, f"k{n}")
                    for n, policy in enumerate(policies[:number])
                )
            )

    return asyncio.run(run_all())


def test_rollouts_in_machines(backend: dict[str, Any], tmp_path) -> None:
    """The same record as on this machine, although no machine has a network."""
    (tmp_path / "agent.py").write_text(AGENT)
    settings: dict[str, Any] = {"files": str(tmp_path), "limits": {"processes": 64}}
    environment = CommandEnvironment("python3 agent.py", backend=backend, **settings)
    for done in run_rollouts(environment, 2):
        assert (done.error, done.answer, done.rewards) == ("", "Ada/Yes", {"environment": 0.25})
        authors = [segment.author for segment in done.segments]
        assert authors == [Author.PROMPT, Author.POLICY, Author.TOOL, Author.POLICY]
    assert environment.describe_isolation().backend == backend["name"]
    assert "no network" in environment.describe_isolation().layers


def test_a_program_without_an_end(backend: dict[str, Any], request) -> None:
    """Its rollout is an error, and its machine is gone."""
    code = textwrap.dedent("""
        import os, time
        os.fork()
        while True: print('x', flush=True); time.sleep(0.01)
    """)
    environment = CommandEnvironment(f'python3 -c "{code}"', backend=backend, timeout_seconds=4.0)
    [done] = run_rollouts(environment)
    assert done.status is Status.ERROR
    assert "the agent did not finish within 4 s" in done.error
    if backend["name"] == "container":
        assert list_containers(request.getfixturevalue("engine")) == []
    else:
        assert request.getfixturevalue("e2b").running == {}
