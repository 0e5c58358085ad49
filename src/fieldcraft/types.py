"""The words everything else is written in: tasks, trajectories, and the protocols between parts.

A trajectory is append-only. Every segment holds only the tokens it adds and who wrote them; ids are
written once, when they are sampled or encoded, and never decoded and encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol, runtime_checkable

from fieldcraft.sampling import TurnEnd, VersionSpan


class UserError(Exception):
    """A mistake that the user can correct. The command line prints it and exits with 2."""


class ToolError(Exception):
    """A tool's failure that the model is told about; any other exception ends the trajectory."""


class ToolUnavailableError(ToolError):
    """Failure of what a tool needs, such as a server, to answer, whatever the call was."""


class ArgumentError(ToolError):
    """Arguments that do not fit the tool, which therefore did not run: the policy's failure."""


# The reward that says which answers are right, unless a recipe names another.
DEFAULT_VERDICT_REWARD = "em"
# A model knows what it answers without tools in at least three of four samples.
KNOWN_ACCURACY_THRESHOLD = 0.75


class Author(StrEnum):
    """The author of a segment."""

    PROMPT = "prompt"
    POLICY = "policy"
    TOOL = "tool"
    SIMULATOR = "simulator"


# Of a malformed call: no name can be read, it names no tool offered, or its arguments do not fit
CallFault = Literal["form", "tool", "arguments"]


class Status(StrEnum):
    """The way in which a trajectory ended."""

    ANSWERED = "answered"
    NO_ANSWER = "no_answer"  # the policy ended its turn with neither an action nor an answer
    TRUNCATED = "truncated"  # the budget ended it
    ERROR = "error"  # an exception; its text is in Trajectory.error


class CallOutcome(StrEnum):
    """The outcome of a call that the policy wrote."""

    OK = "ok"
    FAILED = "failed"  # the tool itself failed (ToolError); the model was told
    UNAVAILABLE = "unavailable"  # no answer (ToolUnavailableError, or too slow); the model was told
    BROKEN = "broken"  # the tool raised something else, which ended the rollout
    MALFORMED = "malformed"  # unreadable, of no known tool, or with wrong arguments; not executed
    REFUSED = "refused"  # over the budget; not executed

    @property
    def executed(self) -> bool:
        """Return whether the tool, or what simulates it, was asked."""
        return self is CallOutcome.OK or self.failed

    @property
    def failed(self) -> bool:
        """Return whether the tool was asked in vain, but not for the form of the call."""
        return self in (CallOutcome.FAILED, CallOutcome.UNAVAILABLE, CallOutcome.BROKEN)


@dataclass(frozen=True, slots=True)
class Task:
    """A question with checkable answers. `meta` carries what a world or data set knows beyond that:
    `hops`, `known` (the model was taught every fact on the path), `closed_book` (the share of right
    answers among a model's samples without tools), `calls_optimal` (the least number of searches
    it needs), `cost_optimal` and `ways` (see `records/costs.py`), `cluster` (of questions that tend
    to be right together; intervals and tests respect it), `offered` (its tools; else all)."""

    id: str
    question: str
    answers: tuple[str, ...]
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def is_known(self) -> bool | None:
        """Return whether the model needs no tool: `known` if the source of the question says so,
        else whether its closed-book rate reaches KNOWN_ACCURACY_THRESHOLD; None where neither is
        there."""
        known: bool | None = self.meta.get("known")
        rate: float | None = self.meta.get("closed_book")
        return rate >= KNOWN_ACCURACY_THRESHOLD if known is None and rate is not None else known


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the policy wrote it."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """A final answer as the policy wrote it."""

    text: str


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """An attempted call that cannot be read, why (the model is told so), and the tool it names."""

    reason: str
    tool: str = ""
    fault: CallFault = "form"


class ThoughtRole(StrEnum):
    """Purpose of a thought. A dialect without tags for a role writes it as any other thought."""

    THINK = "think"
    PLAN = "plan"
    REFLECT = "reflection"
    SUGGEST = "suggested_answer"
    CHECK = "double_check"  # of a suggested answer
    SUMMARY = "summary"  # ends a chain: what follows is in a new one


@dataclass(frozen=True, slots=True)
class Thought:
    """Free reasoning text; a step of a demonstration."""

    text: str
    role: ThoughtRole = ThoughtRole.THINK


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of a tool, as plain text; a step of a demonstration."""

    text: str


DemoStep = Thought | ToolCall | Observation | Answer
# Of one policy turn, in the order they were written.
ToolCalls = tuple[ToolCall | MalformedCall, ...]


@dataclass(frozen=True, slots=True)
class ObservationPosition:
    """The place of an observation in a turn: `index` of `count`, from 0. One frame holds all."""

    index: int
    count: int


ONLY_OBSERVATION = ObservationPosition(0, 1)


@dataclass(slots=True)
class Segment:
    """The tokens one author added. If they were sampled, `logprobs` has one float per id."""

    author: Author
    ids: list[int]
    text: str
    logprobs: list[float] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)  # of the policy that sampled them


@dataclass(slots=True)
class CallRecord:
    """One tool call of a trajectory and what came back. `observation` is what the model reads;
    `cut` counts the characters of the tool's text that were left out of it, `cost` is its price.
    Of a broken one it is the cause, which nobody read."""

    tool: str
    arguments: dict[str, Any]
    observation: str
    outcome: CallOutcome
    seconds: float
    simulated: bool = False
    cut: int = 0
    fault: CallFault | None = None
    cost: float = 1.0


@dataclass(slots=True)
class Trajectory:
    """Everything that happened for one task, in order. `rewards` keeps the unweighted score of
    every reward by name, `reward` is their weighted sum; None means "not gradable" and is never a
    0. `correct` names the one that graded the answer, right or wrong. `folds` has the place in
    `segments` of each chain's prompt but the first one's (`records/chains.py`). A `tool_free` one
    was sampled while the tools were unavailable, so that a call ended it. A `forced` one was made
    to answer, because its budget was spent (`rollout/termination.py`). 1,000 policy tokens cost
    `token_cost`, in the unit of the costs of calls.
    """

    task: Task
    segments: list[Segment] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    status: Status = Status.NO_ANSWER
    answer: str | None = None
    well_formed: bool = False
    rewards: dict[str, float | None] = field(default_factory=dict)
    reward: float | None = None
    correct: str = DEFAULT_VERDICT_REWARD
    error: str = ""
    seconds: float = 0.0
    folds: list[int] = field(default_factory=list)
    tool_free: bool = False
    forced: bool = False
    token_cost: float = 0.0

    @property
    def ids(self) -> list[int]:
        return [i for segment in self.segments for i in segment.ids]

    @property
    def policy_turns(self) -> list[str]:
        return [s.text for s in self.segments if s.author is Author.POLICY]

    @property
    def is_correct(self) -> bool | None:
        """Return whether the reward `correct` gave the answer 1; None where that could not grade
        it. Raises ValueError for a score outside 0 to 1, such as one times a weight."""
        score = self.rewards.get(self.correct)
        if score is not None and not 0.0 <= score <= 1.0:
            raise ValueError(f"rewards['{self.correct}'] must be from 0 to 1 or None, not {score}")
        return None if score is None else score == 1.0

    @property
    def num_executed_calls(self) -> int:
        """Calls that were run, failed ones included; not refused and not malformed ones."""
        return sum(call.outcome.executed for call in self.calls)


@runtime_checkable
class Tool(Protocol):
    """Something the policy can call."""

    name: str
    schema: dict[str, Any]  # JSON schema of the function, as chat templates take it

    async def __call__(self, **arguments: Any) -> str:
        """Run the call and return plain text. Raises ArgumentError where the arguments do not fit
        and nothing was run, ToolUnavailableError where what the tool needs does not answer
        (evaluations stop at too many), and ToolError for any other failure that the model should
        read."""


@runtime_checkable
class StatefulTool(Protocol):
    """A tool that keeps something for the length of one rollout, such as a Python session."""

    name: str
    schema: dict[str, Any]  # as that of a Tool

    def open(self, task: Task) -> AbstractAsyncContextManager[Tool]:
        """Return a context with the tool: entered before the rollout's first turn, exited however
        it ends. Rollouts run side by side, so all that one may change belongs in here."""


AnyTool = Tool | StatefulTool


@runtime_checkable
class Reward(Protocol):
    """A score of whole groups (all rollouts of a task), which compares their members. It may keep
    state over the run (a best-known count per question); the state is checkpointed."""

    name: str

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Tokenizer(Protocol):
    """The part of a transformers fast tokenizer that code below the engine uses."""

    eos_token_id: int | None
    chat_template: Any
    backend_tokenizer: Any  # a tokenizers.Tokenizer

    def encode(self, text: str, **options: Any) -> list[int]: ...

    def decode(self, ids: Sequence[int], **options: Any) -> str: ...

    def get_chat_template(self, *, tools: Any = None) -> str: ...

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> Any: ...

    def __hash__(self) -> int: ...


class Dialect(Protocol):
    """The only place that knows tags: how prompts, actions, observations and answers look.

    A dialect is bound to a tokenizer. Text that neither the user of the framework nor the policy
    wrote (questions, observations) is encoded without special tokens, and is never parsed.
    """

    @property
    def name(self) -> str: ...

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Strings that end a policy turn. Without any, only an end token does."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Every tag, of the policy and of the environment."""

    @property
    def tagged_roles(self) -> tuple[ThoughtRole, ...]:
        """The roles whose thoughts have tags of their own, between which nothing is a call."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def turn_end(self) -> TurnEnd: ...

    @property
    def summary_prompt(self) -> str | None:
        """Text that asks for a summary, up to the tag <summary>; None: a chain cannot be folded."""

    @property
    def example_final_turn(self) -> str:
        """A last turn, of any content, that the grammar accepts after an observation."""

    def encode_prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[int]:
        """Return the token ids up to where the policy starts to write. `tools` are JSON schemas."""

    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None:
        """Return what the last policy turn asks for: its answer, its calls (at least one), or None
        for neither. `turns` is all policy turns, oldest first."""

    def render_thought(self, text: str) -> str:
        """Write the beginning of a turn that thinks `text`, which may be empty, and goes on."""

    def render_thoughts(self, thoughts: Sequence[Thought]) -> str:
        """Write the same for the thoughts of a demonstration, of which there may be none."""

    def render_call(self, call: ToolCall) -> str:
        """Write the call as the policy does, from its opening tag up to its closing tag."""

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """Write all calls of one turn, as the policy does. Raises UserError for more calls than the
        dialect allows in a turn."""

    def observation_delimiters(
        self, position: ObservationPosition = ONLY_OBSERVATION
    ) -> tuple[str, str]:
        """Return the text before and after an observation, white space included. A simulator writes
        between the two. What stands between two observations of a turn belongs to the first."""

    def render_observation(
        self, text: str, position: ObservationPosition = ONLY_OBSERVATION
    ) -> str:
        """Write the whole observation block, tags and surrounding white space included."""

    def encode_observation(
        self, text: str, position: ObservationPosition = ONLY_OBSERVATION
    ) -> list[int]:
        """Encode what `render_observation` returns; only its frame may hold special tokens."""

    def render_answer(self, text: str) -> str:
        """Write what follows the last thought, up to and without the end token."""

    def render_answer_opening(self, turn: str) -> str:
        """Write what ends a turn begun with `turn`, which may be empty, and opens the answer."""

    def is_well_formed(self, turns: Sequence[str]) -> bool:
        """Return whether the policy turns of a finished trajectory obey the dialect's grammar."""
