"""Talk of a program of others with the policy during one rollout, as chains of a trajectory."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from fieldcraft.config.sections import Limits
from fieldcraft.gateway.messages import Says, TurnRequest
from fieldcraft.gateway.protocol import Message
from fieldcraft.gateway.refusals import Refused
from fieldcraft.gateway.scribe import Scribe
from fieldcraft.records.chains import ids_of
from fieldcraft.rollout.turns import Policy, write_turn
from fieldcraft.types import Author, Call, Outcome, Segment, StopReason, Task, Trajectory


@dataclass(frozen=True, slots=True)
class Reply:
    """A turn as a message, and its tokens. `calls` are the names that its calls have, in order: a
    result names the call that it answers."""

    says: Says
    calls: tuple[str, ...]
    reason: StopReason
    read: int
    written: int


@dataclass(slots=True, eq=False)
class Chain:
    """Sequence of what the policy read and wrote. Nobody else continues it while it is being
    written."""

    trajectory: Trajectory
    session: str
    key: str
    busy: bool = False

    @property
    def ids(self) -> list[int]:
        return ids_of(self.trajectory.segments)


@dataclass(slots=True, eq=False)
class Asked:
    """A call that a turn made. Whether it failed is not known, only what came back."""

    tool: str
    arguments: str
    since: float
    answer: Call | None = None

    def came_back(self, observation: str) -> None:
        """Note a result. The first one counts: later requests repeat it."""
        if self.answer is None:
            seconds = time.perf_counter() - self.since
            arguments = json.loads(self.arguments)
            self.answer = Call(self.tool, arguments, observation, Outcome.OK, seconds)


@dataclass
class Talk:
    """All requests of one rollout.

    A request whose ids begin with all the ids of a chain continues that chain: the longest one.
    Any other begins a chain of its own. So each token is kept once, right behind those that the
    policy read when it sampled it.
    """

    task: Task
    policy: Policy
    scribe: Scribe
    budget: Limits
    turns: int  # how many the rollout may have
    session: str
    key: str
    full: bool = False  # the budget ended a turn, or refused one
    failure: Exception | None = None  # what the engine raised, which the agent does not understand
    chains: list[Chain] = field(default_factory=list)
    reward: float | None = None  # that was posted
    calls: dict[str, Asked] = field(default_factory=dict)
    _said: set[Says] = field(default_factory=set)
    _sampled: dict[tuple[tuple[int, ...], Says], list[int]] = field(default_factory=dict)
    _asking: set[asyncio.Task[Reply]] = field(default_factory=set)

    async def ask(self, request: TurnRequest) -> Reply:
        """Ask for the policy's next turn and return it. Raises Refused where the budget leaves no
        room for one, when the engine failed, and when the rollout is over."""
        asking = asyncio.create_task(self._ask(request))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        await asyncio.wait([asking])
        if asking.cancelled():
            raise Refused(400, "the rollout is over.")
        failure = asking.exception()
        if isinstance(failure, Exception) and not isinstance(failure, Refused):
            self.failure = failure
            raise Refused(400, "the engine failed.") from failure
        return asking.result()

    async def _ask(self, request: TurnRequest) -> Reply:
        self._hear_results(request.messages)
        scribe = self.scribe.with_variables(request.chat_template_kwargs)
        ids = scribe.prompt(request.messages, request.offered, self._said, self._known)
        self._refuse_more(ids)
        chain = self._chain_of(ids)
        room = min(self.budget.turn_tokens, self.budget.total_tokens - len(ids))
        most = min(room, request.most_tokens or room)
        limits = self.budget.model_copy(update={"turn_tokens": most})
        chain.busy = True
        try:
            reason = await write_turn(
                self.policy, chain.trajectory, chain.session, chain.key, limits, request.stops
            )
        finally:
            chain.busy = False
        turn = chain.trajectory.segments[-1]
        self.full |= reason is StopReason.LENGTH and len(turn.ids) == room
        says = self.scribe.read(turn.text, request.stops, request.offered)
        self._said.add(says)
        self._sampled[tuple(ids), says] = turn.ids
        return Reply(says, self._note_calls(says), reason, len(ids), len(turn.ids))

    def _note_calls(self, says: Says) -> tuple[str, ...]:
        """Return the names of the calls of a turn, which no other one of this rollout has, and
        which are the same when it is run again."""
        now = time.perf_counter()
        # A chat template may write them, and some want nine letters and digits.
        first = len(self.calls)
        made = {f"call{n:05}": Asked(*call, now) for n, call in enumerate(says.calls, first)}
        self.calls |= made
        return tuple(made)

    def _hear_results(self, messages: Sequence[Message]) -> None:
        for message in messages:
            asked = self.calls.get(message.tool_call_id or "")
            if asked is not None:
                asked.came_back(message.text)

    def _known(self, ids: Sequence[int], says: Says) -> list[int] | None:
        return self._sampled.get((tuple(ids), says))

    def _refuse_more(self, ids: Sequence[int]) -> None:
        if sum(len(chain.trajectory.policy_texts) for chain in self.chains) >= self.turns:
            self.full = True
            raise Refused(400, f"the rollout has had its {self.turns} turns.")
        if len(ids) >= self.budget.total_tokens:
            self.full = True
            raise Refused(
                400,
                f"the context length of {self.budget.total_tokens} tokens is used up, so there is"
                " no room for an answer.",
            )

    def _chain_of(self, ids: list[int]) -> Chain:
        """Return the chain that ends where the policy is to write."""
        begun = [c for c in self.chains if not c.busy and ids[: len(c.ids)] == c.ids]
        if begun:
            chain = max(begun, key=lambda chain: len(chain.ids))
            self._append(chain, Author.TOOL, ids[len(chain.ids) :])
        else:
            number = len(self.chains)
            chain = Chain(Trajectory(self.task), f"{self.session}/{number}", f"{self.key}/{number}")
            self.chains.append(chain)
            self._append(chain, Author.PROMPT, ids)
        return chain

    def _append(self, chain: Chain, author: Author, ids: list[int]) -> None:
        if not ids:  # the same request again, because the engine failed
            return
        text = self.scribe.dialect.tokenizer.decode(ids)
        chain.trajectory.segments.append(Segment(author, ids, text))

    async def end(self, trajectory: Trajectory) -> None:
        """Stop what is still asked, and append the chains to a trajectory: each up to its last
        turn, in the order in which they began. Its calls are those that had a result."""
        trajectory.calls += [call.answer for call in self.calls.values() if call.answer is not None]
        for asking in self._asking:
            asking.cancel()
        if self._asking:
            await asyncio.wait(self._asking)
        for chain in self.chains:
            self.policy.engine.release(chain.session)
            segments = chain.trajectory.segments
            while segments and segments[-1].author is not Author.POLICY:
                segments.pop()  # its turn was never written
            if segments and trajectory.segments:
                trajectory.folds.append(len(trajectory.segments))
            trajectory.segments += segments
