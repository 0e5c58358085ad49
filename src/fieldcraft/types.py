"""Core types of the package: tasks, trajectories, and the protocols between components.

A trajectory is append-only. Each segment holds only the tokens that one author added. Token ids are
written once, when they are sampled or encoded, and are never decoded and re-encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Any, Literal, Protocol, runtime_checkable

from fieldcraft.sampling import TurnEnd, VersionSpan


class UserError(Exception):
    """An error that the user can correct. The command line prints it and exits with status 2."""


class ToolError(Exception):
    """A tool failure that is reported to the model; any other exception ends the trajectory."""


class ToolUnavailableError(ToolError):
    """Failure of a resource that the tool depends on, such as a server, regardless of the call."""


class ArgumentError(ToolError):
    """Arguments that do not fit the tool, which was therefore not run: an error of the policy."""


# The verdict reward: the reward that decides whether an answer is correct, unless a recipe names
# another one.
DEFAULT_VERDICT_REWARD = "em"
# A model knows a question that it answers without tools in at least three of four samples.
KNOWN_ACCURACY_THRESHOLD = 0.75


class Author(StrEnum):
    """The author of a segment."""

    PROMPT = "prompt"
    POLICY = "policy"
    TOOL = "tool"
    SIMULATOR = "simulator"


# Fault of a malformed call: no name can be parsed, an unknown tool, or arguments that do not fit
CallFault = Literal["form", "tool", "arguments"]


class Status(StrEnum):
    """The final state of a trajectory."""

    ANSWERED = "answered"
    NO_ANSWER = "no_answer"  # the policy ended its turn with neither a call nor an answer
    TRUNCATED = "truncated"  # the budget was exhausted
    ERROR = "error"  # an exception; its text is in Trajectory.error


class CallOutcome(StrEnum):
    """The outcome of a call that the policy wrote."""

    OK = "ok"
    FAILED = "failed"  # the tool failed (ToolError); reported to the model
    UNAVAILABLE = "unavailable"  # ToolUnavailableError or a timeout; reported to the model
    BROKEN = "broken"  # the tool raised another exception, which ended the rollout
    MALFORMED = "malformed"  # unreadable, unknown tool, or wrong arguments; not executed
    REFUSED = "refused"  # over the budget; not executed

    @property
    def executed(self) -> bool:
        """Return whether the tool, or its simulator, received the call."""
        return self is CallOutcome.OK or self.failed

    @property
    def failed(self) -> bool:
        """Return whether the tool received a valid call and failed."""
        return self in (CallOutcome.FAILED, CallOutcome.UNAVAILABLE, CallOutcome.BROKEN)


@dataclass(frozen=True, slots=True)
class Task:
    """A question with checkable answers. `meta` holds what else a world or data set knows:
    `hops`, `known` (the model was trained on every fact of the path), `closed_book` (the fraction
    of correct answers among samples without tools), `calls_optimal` (the minimum number of
    searches), `cost_optimal` and `ways` (see `records/costs.py`), `cluster` (a group of questions
    with correlated results; intervals and tests account for it), `offered` (its tools, or all)."""

    id: str
    question: str
    answers: tuple[str, ...]
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def is_known(self) -> bool | None:
        """Return whether the model needs no tool: `known` if the source of the question states it,
        else whether the closed-book rate reaches KNOWN_ACCURACY_THRESHOLD; None without either."""
        known: bool | None = self.meta.get("known")
        rate: float | None = self.meta.get("closed_book")
        return rate >= KNOWN_ACCURACY_THRESHOLD if known is None and rate is not None else known


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the policy wrote it. `call_id` is its label in formats that have one."""

    tool: str
    arguments: dict[str, Any]
    call_id: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """A final answer as the policy wrote it."""

    text: str


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A call that cannot be parsed, the reason (reported to the model), and the tool it names."""

    reason: str
    tool: str = ""
    fault: CallFault = "form"


class ThoughtRole(StrEnum):
    """Purpose of a thought. A dialect without tags for a role renders it as a plain thought."""

    THINK = "think"
    PLAN = "plan"
    REFLECT = "reflection"
    SUGGEST = "suggested_answer"
    CHECK = "double_check"  # of a suggested answer
    SUMMARY = "summary"  # ends a chain: the rest belongs to a new one


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
# Calls of one policy turn, in the order in which they were written.
ToolCalls = tuple[ToolCall | MalformedCall, ...]


@dataclass(frozen=True, slots=True)
class ObservationPosition:
    """Position `index` of `count`, from 0, in a block. `calls` are those of the turn, or none."""

    index: int
    count: int
    calls: ToolCalls = ()


ONLY_OBSERVATION = ObservationPosition(0, 1)


@dataclass(slots=True)
class Segment:
    """Tokens added by one author. If they were sampled, `logprobs` has one float per id."""

    author: Author
    ids: list[int]
    text: str
    logprobs: list[float] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)  # policy versions that sampled them


@dataclass(slots=True)
class CallRecord:
    """One tool call of a trajectory and its result. `observation` is the text that the model reads;
    `cut` is the number of characters of the tool's output left out of it, `cost` is the price of
    the call. For a broken call, `observation` is the cause, which the model did not read."""

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
    """Everything that happened for one task, in order. `rewards` holds the unweighted score of
    each reward by name, `reward` is their weighted sum; None means "not gradable" and is never
    counted as 0. `correct` names the verdict reward. `folds` holds, for each chain except the
    first, the index in `segments` of its prompt (`records/chains.py`). A `tool_free` trajectory was
    sampled while the tools were unavailable, so a call ended it. A `forced` trajectory had to
    answer because its budget was exhausted (`environments/termination.py`). 1,000 policy tokens
    cost `token_cost`, in the same unit as the costs of calls.
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
        """Return whether the reward `correct` is 1, or None if it could not grade the answer.
        Raises ValueError if the score is outside 0 to 1, for example multiplied by a weight."""
        score = self.rewards.get(self.correct)
        if score is not None and not 0.0 <= score <= 1.0:
            raise ValueError(f"rewards['{self.correct}'] must be from 0 to 1 or None, not {score}")
        return None if score is None else score == 1.0

    def _repr_html_(self) -> str:  # for notebooks; the renderer is of a higher layer
        return str(import_module("fieldcraft.terminal.trajectory_html").render_trajectory(self))

    @property
    def num_executed_calls(self) -> int:
        """Number of executed calls, including failed ones; excludes refused and malformed calls."""
        return sum(call.outcome.executed for call in self.calls)


@runtime_checkable
class Tool(Protocol):
    """A tool that the policy can call."""

    name: str
    schema: dict[str, Any]  # JSON schema of the function, as chat templates expect it

    async def __call__(self, /, **arguments: Any) -> str:
        """Run the call and return plain text. Raises ArgumentError if the arguments do not fit
        and nothing was run, ToolUnavailableError if a resource of the tool does not respond
        (evaluations stop after too many of these), and ToolError for any other failure that the
        model should read."""


@runtime_checkable
class StatefulTool(Protocol):
    """A tool that keeps state for the duration of one rollout, such as a Python session."""

    name: str
    schema: dict[str, Any]  # as for Tool

    def open(self, task: Task) -> AbstractAsyncContextManager[Tool]:
        """Return a context that yields the tool. It is entered before the first turn of the rollout
        and exited however the rollout ends. Rollouts run concurrently, so everything that one of
        them may change belongs in this context."""


AnyTool = Tool | StatefulTool


@runtime_checkable
class Reward(Protocol):
    """A score for each member of a group (all rollouts of a task), which may compare them. It may
    keep state during the run (a best-known count per question); the state is checkpointed."""

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
    """The only component that knows tags: the format of prompts, calls, observations and answers.

    A dialect is bound to a tokenizer. Text written by neither the user of the framework nor the
    policy (questions, observations) is encoded without special tokens, and is never parsed.
    """

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def turn_end(self) -> TurnEnd: ...
    @property
    def thought_tags(self) -> tuple[str, str]: ...

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Strings that end a policy turn. If empty, only an end token ends it."""

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags, of the policy and of the environment."""

    @property
    def tagged_roles(self) -> tuple[ThoughtRole, ...]:
        """Roles whose thoughts have dedicated tags; text inside these tags is never a call."""

    def encode_policy_text(self, text: str) -> list[int]:
        """Encode text of a turn; only the dialect's own tags may be special tokens."""

    def encode_turn(self, text: str) -> list[int]:
        """Encode a whole turn, with the token that ends it unless a stop string does."""

    @property
    def summary_prompt(self) -> str | None:
        """Text that requests a summary, up to the tag <summary>; None: chains cannot be folded."""

    @property
    def example_final_turn(self) -> str:
        """A final turn with placeholder content that the grammar accepts after an observation."""

    def encode_prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[int]:
        """Return the token ids up to where the policy starts to write. `tools` are JSON schemas."""

    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None:
        """Return the answer or the calls (at least one) of the last policy turn, or None."""

    def render_thought(self, text: str) -> str:
        """Render the start of a turn with the thought `text`, which may be empty."""

    def render_thoughts(self, thoughts: Sequence[Thought]) -> str:
        """Render the start of a turn with the thoughts of a demonstration, which may be empty."""

    def render_call(self, call: ToolCall) -> str:
        """Render the call as the policy writes it, from its opening tag through its closing tag."""

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """Render all calls of a turn. Raises UserError if the dialect allows fewer in a turn."""

    def number_calls(self, calls: Sequence[ToolCall], before: int) -> list[ToolCall]:
        """Return the calls with ids that count on after `before` calls, if the dialect has such."""

    def observation_delimiters(
        self, position: ObservationPosition = ONLY_OBSERVATION
    ) -> tuple[str, str]:
        """Return the text before and after an observation, including white space. A simulator
        writes between the two. Text between two observations of a turn belongs to the first."""

    def render_observation(
        self, text: str, position: ObservationPosition = ONLY_OBSERVATION
    ) -> str:
        """Render the whole observation block, including tags and surrounding white space."""

    def encode_observation(
        self, text: str, position: ObservationPosition = ONLY_OBSERVATION
    ) -> list[int]:
        """Encode `render_observation`'s text; only its delimiters may contain special tokens."""

    def render_answer(self, text: str) -> str:
        """Render the text after the last thought, excluding the end token."""

    def render_answer_opening(self, turn: str) -> str:
        """Render the end of a turn that starts with `turn`, if anything, and open the answer."""

    def is_well_formed(self, turns: Sequence[str]) -> bool:
        """Return whether the policy turns of a finished trajectory match the dialect's grammar."""
