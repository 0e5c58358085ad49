"""Encoding of a demonstration as the trajectory that sampling it would have produced.

White space: the prompt ends where the policy starts to write; the text of a turn (its thoughts,
then its call or answer, as rendered by the dialect) is one string, encoded once; a turn ends
exactly with its stop string, or else with the end-of-sequence token; the white space between a turn
and an observation belongs to the observation. Consecutive actions are the calls of one turn,
followed by the same number of observations. A thought with the role SUMMARY, after observations,
folds the chain. Every id of a policy segment could thus have been sampled by the policy at its
position, and every other id is one that a rollout inserts there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from fieldcraft.dialects import folding
from fieldcraft.dialects.calls import locate_observations
from fieldcraft.dialects.tool_names import ToolNameMap
from fieldcraft.records.chains import get_policy_turns, split_chains
from fieldcraft.types import (
    Answer,
    Author,
    CallOutcome,
    CallRecord,
    DemoStep,
    Dialect,
    Observation,
    Segment,
    Status,
    Task,
    Thought,
    ThoughtRole,
    ToolCall,
    Trajectory,
    UserError,
)

ToolSchemas = Sequence[dict[str, Any]]  # JSON schemas of tools, as chat templates expect them
TrajectoryPair = tuple[Trajectory, Trajectory]  # chosen, rejected; all but the last turn is shared


class DemonstrationEncodingError(UserError):
    """Demonstration that a policy could not have written; `reason` states why, without its id."""

    def __init__(self, sentence: str, reason: str) -> None:
        super().__init__(sentence)
        self.reason = reason


def encode_demonstration(
    task: Task, steps: Sequence[DemoStep], dialect: Dialect, tools: ToolSchemas
) -> Trajectory:
    """Encode `steps` as a trajectory; `tools` are JSON schemas, as for
    `dialects.tool_names.ToolNameMap`.

    Consecutive thoughts of a role are joined by a blank line. Status, answer and well-formedness
    are parsed by the dialect from the rendered text, so a demonstration that violates the grammar
    has `well_formed` false. Steps may end in an action without its observation, or in a thought.
    Raises DemonstrationEncodingError for steps in an invalid order and for calls that the dialect
    cannot render or parse back, and UserError for a summary in a dialect without summaries.
    """
    names = ToolNameMap(task, tools)
    turns = _split_turns(
        task, [names.to_surface(s) if isinstance(s, ToolCall) else s for s in steps]
    )
    trajectory = Trajectory(task, calls=build_call_records(steps))

    def add(author: Author, ids: list[int]) -> None:
        trajectory.segments.append(Segment(author, ids, dialect.tokenizer.decode(ids)))

    add(Author.PROMPT, dialect.encode_prompt(task.question, names.schemas))
    call_count = 0  # in the chain
    for turn in turns:
        if turn.summary is not None:
            call_count = 0
            add(Author.PROMPT, folding.encode_summary_prompt(dialect))
            add(Author.POLICY, folding.encode_summary(dialect, turn.summary))
            trajectory.folds.append(len(trajectory.segments))
            turns_so_far = trajectory.policy_turns
            question = folding.render_folded_question(
                dialect, task.question, turns_so_far, turn.summary
            )
            add(Author.PROMPT, dialect.encode_prompt(question, names.schemas))
            continue
        turn.calls = dialect.number_calls(turn.calls, call_count)
        call_count += len(turn.calls)
        add(Author.POLICY, encode_turn(dialect, turn.thoughts, _render_turn_end(turn, dialect)))
        if turn.calls:
            turns_so_far = get_policy_turns(split_chains(trajectory)[-1])
            _require_parsed_back(task, turn, dialect, turns_so_far)
        positions = locate_observations(tuple(turn.calls[: len(turn.observations)]))
        for position, text in zip(positions, turn.observations, strict=True):
            add(Author.TOOL, dialect.encode_observation(text, position))

    outcome = dialect.parse(get_policy_turns(split_chains(trajectory)[-1]))
    if isinstance(outcome, Answer):
        trajectory.status, trajectory.answer = Status.ANSWERED, outcome.text
    trajectory.well_formed = folding.is_well_formed(dialect, trajectory)
    return trajectory


@dataclass(frozen=True)
class DemonstrationEncoder:
    """Encoder of demonstrations for a dialect and the tools that its prompts show."""

    dialect: Dialect
    schemas: ToolSchemas = ()

    def encode(self, task: Task, steps: Sequence[DemoStep]) -> Trajectory:
        """Encode the steps that answer a question, see `encode_demonstration`."""
        return encode_demonstration(task, steps, self.dialect, self.schemas)

    def encode_pair(
        self,
        task: Task,
        before: Sequence[DemoStep],
        alternatives: tuple[Sequence[DemoStep], Sequence[DemoStep]],
    ) -> TrajectoryPair:
        """Encode both alternatives that continue after `before`, as trajectories whose last
        segments differ.

        Each alternative is one policy turn, or its start if the alternative ends in a thought. A
        final thought of `before` starts this turn. Every turn is encoded as a whole, and the ids
        that both have in common at the start become the last segment of the shared prefix, so the
        policy could have sampled each id at its position. Raises DemonstrationEncodingError for
        alternatives that could not be sampled, or if one is a prefix of the other.
        """
        chosen, rejected = (
            self._encode_alternative(task, _join_thought(before, alternative))
            for alternative in alternatives
        )
        chosen_ids, rejected_ids = chosen.segments[-1].ids, rejected.segments[-1].ids
        shorter = min(len(chosen_ids), len(rejected_ids))
        shared = next((i for i in range(shorter) if chosen_ids[i] != rejected_ids[i]), shorter)
        if shared == shorter:
            message = f"In the pair of task {task.id} one side is a prefix of the other."
            raise DemonstrationEncodingError(message, "with a side that is a prefix of the other")
        for trajectory in (chosen, rejected):
            ids = trajectory.segments.pop().ids
            trajectory.segments += [
                Segment(Author.POLICY, piece, self.dialect.tokenizer.decode(piece))
                for piece in (ids[:shared], ids[shared:])
                if piece
            ]
        return chosen, rejected

    def _encode_alternative(self, task: Task, steps: Sequence[DemoStep]) -> Trajectory:
        trajectory = self.encode(task, steps)
        if isinstance(steps[-1], Thought):  # the turn continues: neither a closing tag nor an end
            text = steps[-1].text.strip()
            start = self.dialect.render_thought(text).rpartition(text)[0]
            ids = self.dialect.encode_policy_text(start + text)
            trajectory.segments[-1] = Segment(
                Author.POLICY, ids, self.dialect.tokenizer.decode(ids)
            )
        return trajectory

    def round_trips(self, trajectory: Trajectory, last: DemoStep) -> bool:
        """Return whether the dialect parses the last turn of one side of a pair into its original
        step."""
        turns = [
            self.dialect.tokenizer.decode([i for segment in segments for i in segment.ids])
            for author, segments in groupby(trajectory.segments, key=lambda s: s.author)
            if author is Author.POLICY
        ]
        parsed = self.dialect.parse(turns)
        move = parsed[-1] if isinstance(parsed, tuple) else parsed
        if isinstance(move, ToolCall):
            move = ToolNameMap(trajectory.task, self.schemas).to_canonical(move)
        return move == (None if isinstance(last, Thought) else last)


def _join_thought(before: Sequence[DemoStep], continuation: Sequence[DemoStep]) -> list[DemoStep]:
    """Join the steps of `before` and one alternative. A continued thought stays on one line."""
    match [*before[-1:], *continuation[:1]]:
        case [Thought(start, role), Thought(end, other)] if role == other:
            return [*before[:-1], Thought(f"{start} {end}", role), *continuation[1:]]
    return [*before, *continuation]


def encode_turn(dialect: Dialect, thoughts: Sequence[Thought], end: str) -> list[int]:
    """Encode one policy turn as ids. Special tokens that occur in its text are encoded as text."""
    return dialect.encode_turn(dialect.render_thoughts(thoughts) + end)


@dataclass(slots=True)
class _DemoTurn:
    """Turn of the policy and the results of its calls."""

    thoughts: list[Thought] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    answer: Answer | None = None
    summary: str | None = None  # excludes all other content of the turn

    def render_end(self, dialect: Dialect) -> str:
        """Return the text after the thoughts."""
        if self.answer is not None:
            return dialect.render_answer(self.answer.text)
        return dialect.render_calls(self.calls) if self.calls else ""


def _render_turn_end(turn: _DemoTurn, dialect: Dialect) -> str:
    """Return the text after the thoughts of a turn. Raises DemonstrationEncodingError."""
    try:
        return turn.render_end(dialect)
    except UserError as error:
        reason = f"with a call that the dialect '{dialect.name}' cannot write"
        raise DemonstrationEncodingError(str(error), reason) from error


def _require_parsed_back(
    task: Task, turn: _DemoTurn, dialect: Dialect, turns: Sequence[str]
) -> None:
    """Raise DemonstrationEncodingError unless the dialect parses the calls of the last turn back
    unchanged, regardless of its thoughts."""
    read, rendered = dialect.parse(turns), dialect.render_calls(turn.calls)
    match read:
        case Answer(text) if text == rendered:  # calls that are not executed
            return
        case tuple():
            calls = [move for move in read if isinstance(move, ToolCall)]
            is_complete = len(calls) == len(read) == len(turn.calls)
            if is_complete and dialect.render_calls(calls) == rendered:
                return
    raise DemonstrationEncodingError(
        f"The dialect {dialect.name} does not read the calls in the demonstration of task {task.id}"
        " back, because a thought or a call contains a tag, or a call is empty: correct it, or use"
        " the dialect hermes.",
        f"with a call that the dialect '{dialect.name}' does not read back",
    )


def require_valid_order(task: Task, steps: Sequence[DemoStep]) -> None:
    """Raise DemonstrationEncodingError for steps in an invalid order."""
    _split_turns(task, steps)


def _split_turns(task: Task, steps: Sequence[DemoStep]) -> list[_DemoTurn]:
    """Group steps into turns. Raises DemonstrationEncodingError for an invalid order."""
    if not steps or isinstance(steps[0], Observation):
        message = f"The demonstration of task {task.id} must start with a thought or a move."
        raise DemonstrationEncodingError(message, "with no thought or move at their beginning")
    wrong_order = DemonstrationEncodingError(
        f"In the demonstration of task {task.id} every action must be followed by its observation,"
        " several actions in a row by as many, and an observation only by a thought or a move; a"
        " summary must directly follow an observation.",
        "with steps in an impossible order",
    )
    turns = [_DemoTurn()]
    for step in steps:
        observed = bool(turns[-1].observations)
        if turns[-1].summary is not None or (observed and not isinstance(step, Observation)):
            turns.append(_DemoTurn())
        turn = turns[-1]
        if turn.answer is not None:
            message = f"The demonstration of task {task.id} has more steps after its answer."
            raise DemonstrationEncodingError(message, "with steps after their answer")
        match step:
            case Thought(text, ThoughtRole.SUMMARY) if observed:
                turn.summary = text.strip()
            case Thought(text, role) if role is not ThoughtRole.SUMMARY and not turn.calls:
                turn.thoughts.append(replace(step, text=text.strip()))
            case ToolCall():
                turn.calls.append(step)
            case Observation(text):
                turn.observations.append(text)
            case Answer() if not turn.calls:
                turn.answer = step
            case _:
                raise wrong_order
    for turn in turns:
        if len(turn.observations) != len(turn.calls) and (
            turn is not turns[-1] or turn.observations
        ):
            raise wrong_order
    return turns


def build_call_records(steps: Sequence[DemoStep]) -> list[CallRecord]:
    """Return the calls that have an observation, in order: the n-th action of a turn belongs to the
    n-th observation after it."""
    waiting: list[ToolCall] = []
    records: list[CallRecord] = []
    for step in steps:
        match step:
            case ToolCall():
                waiting.append(step)
            case Observation(text) if waiting:
                call = waiting.pop(0)
                records.append(
                    CallRecord(call.tool, call.arguments, text, CallOutcome.OK, seconds=0.0)
                )
            case _:
                waiting = []
    return records
