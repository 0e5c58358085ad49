"""Memories that a model writes in conversations, and reads when it is asked questions later."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fieldcraft.environments.base import EnvironmentContractError
from fieldcraft.environments.turns import Policy, open_engine_session
from fieldcraft.extensions.external_envs.bfcl.questions import BfclQuestion
from fieldcraft.extensions.external_envs.bfcl.rollouts import BfclContext, BfclRollout, WireCalls
from fieldcraft.records.waits import report_wait
from fieldcraft.types import Author, MalformedCall, Task, Trajectory

Memory = dict[str, Any] | None  # of the simulators; None before the first conversation


@dataclass
class MemoryRollout(BfclRollout):
    """Question whose functions read and change a copy of `memory`."""

    memory: Memory = None

    async def converse(self) -> dict[str, Any]:
        """Run the rollout, and return the verdict on its last message. As in the package, changes
        that a question makes to the memory are lost."""
        await self._open_memory()
        _, error = await self._run_turns()
        if error:
            return {"valid": False, "error": error}
        calls = self._parse_turn()
        self._finish(calls)
        if any(isinstance(call, MalformedCall) for call in calls):
            return {"valid": False, "error": "the calls cannot be read"}
        answer = self.trajectory.answer or ""
        return await self.context.ask_worker({"check": self.question.id, "answer": answer})

    async def _open_memory(self) -> None:
        """Replace the messages of the first turn by those that tell of the memory."""
        request = {"open": self.question.id, "memory": self.memory}
        messages = _require(await self.context.ask_worker(request), "messages")
        self.question = replace(self.question, turns=[messages, *self.question.turns[1:]])

    async def _ask_simulators(self, kind: str, steps: Sequence[WireCalls]) -> dict[str, Any]:
        request = {kind: self.question.id, "steps": steps, "memory": self.memory}
        return await self.context.ask_worker(request)


@dataclass
class MemoryConversation(MemoryRollout):
    """Conversation before the questions, in which the policy writes the memory."""

    async def write_memory(self) -> Memory:
        """Run the conversation, and return the memory after it. As in the package, a conversation
        that reaches the limit of steps ends there, and the memory has what it wrote before."""
        await self._open_memory()
        executed, _ = await self._run_turns()
        steps = [step for turn in executed for step in turn]
        memory: Memory = _require(await self._ask_simulators("store", steps), "memory")
        return memory

    async def _run_steps(self, executed: list[list[WireCalls]]) -> bool:
        """Run the steps of a turn. As in the package, a message that is cut at the limit of its
        tokens ends the turn and not the conversation."""
        if await super()._run_steps(executed):
            return True
        last = self.trajectory.segments[-1]
        is_cut = len(last.ids) == self.context.budget.max_turn_tokens
        if last.author is not Author.POLICY or not is_cut:
            return False
        self._append(Author.TOOL, [self.dialect.turn_end.token_id])
        return True


def _require(reply: Mapping[str, Any], key: str) -> Any:
    """Return a part of a reply. Raises EnvironmentContractError if an exception took its place."""
    if key not in reply:
        raise EnvironmentContractError(f"the memory cannot be used: {reply.get('error')}")
    return reply[key]


@dataclass
class ScenarioMemories:
    """Memories of scenarios, each written by the policy that is asked about it.

    Attributes:
        conversations: conversations that write them, by id.
        written: the memory after each conversation that was held, by its id.
        locks: lock of each scenario, by its first conversation.
    """

    context: BfclContext
    conversations: Mapping[str, BfclQuestion]
    written: dict[str, Memory] = field(default_factory=dict)
    locks: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def get(self, question: BfclQuestion, policy: Policy) -> Memory:
        """Return the memory of a question. The first question of a scenario holds the conversations
        before it, in their order; others wait for it. Raises EnvironmentContractError if a
        conversation failed; the next question holds it again."""
        memory: Memory = None
        async with self.locks[question.depends_on[0]]:
            for number, name in enumerate(question.depends_on, start=1):
                if name not in self.written:
                    conversation = self.conversations[name]
                    awaited = f"conversation {number} of {len(question.depends_on)} that writes it"
                    with report_wait("a question about a memory", awaited):
                        self.written[name] = await self._converse(conversation, memory, policy)
                memory = self.written[name]
        return memory

    async def _converse(self, conversation: BfclQuestion, memory: Memory, policy: Policy) -> Memory:
        key = conversation.id  # the same random choices, whichever question comes first
        trajectory = Trajectory(Task(key, conversation.text, ()))
        async with open_engine_session(trajectory, policy.engine, key) as session:
            parts = (self.context, conversation, trajectory, policy, session, key, memory)
            return await MemoryConversation(*parts).write_memory()
        raise EnvironmentContractError(f"the conversation '{key}' failed: {trajectory.error}")
