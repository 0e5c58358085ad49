"""Turns a demonstration into the trajectory that sampling it would have produced.

White space: the prompt ends where the policy starts to write; the text of a turn (its thoughts,
then its call or answer, as the dialect writes them) is one string, encoded once; a turn ends
exactly with its stop string, or else with the end-of-sequence token; the white space between a turn
and an observation belongs to the observation. Several actions in a row are the calls of one turn,
and as many observations follow them. A thought of the role SUMMARY, after observations, folds the
chain. So every id of a policy segment is one that the
policy could have sampled at that place, and every other id is one that a rollout puts there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from fieldcraft.dialects import folding
from fieldcraft.dialects.base import encode_written
from fieldcraft.dialects.naming import Names
from fieldcraft.records.chains import chains, turns_of
from fieldcraft.types import (
    Action,
    Answer,
    Author,
    Call,
    Dialect,
    Observation,
    Outcome,
    Place,
    Role,
    Segment,
    Status,
    Step,
    Task,
    Thought,
    Trajectory,
    UserError,
)


class Unwritable(UserError):
    """A demonstration that a policy could not have written; `reason` says why without its id."""

    def __init__(self, sentence: str, reason: str) -> None:
        super().__init__(sentence)
        self.reason = reason


def encode_demonstration(
    task: Task, steps: Sequence[Step], dialect: Dialect, tools: Sequence[dict[str, Any]]
) -> Trajectory:
    """Encode `steps` as a trajectory; `tools` are JSON schemas, as for `dialects.naming.Names`.

    Consecutive thoughts of a role are joined by a blank line. Status, answer and well-formedness
    are what the dialect reads from the text that was written, so a demonstration that breaks the
    grammar shows it in `well_formed`. Steps may end in an action without its observation, or in a
    thought.
    Raises Unwritable for steps in an impossible order and for calls that the dialect cannot write
    or would not read, and UserError for a summary in a dialect that has none.
    """
    names = Names(task, tools)
    turns = _turns(task, [names.written(s) if isinstance(s, Action) else s for s in steps])
    trajectory = Trajectory(task, calls=answered_calls(steps))

    def add(author: Author, ids: list[int]) -> None:
        trajectory.segments.append(Segment(author, ids, dialect.tokenizer.decode(ids)))

    add(Author.PROMPT, dialect.prompt(task.question, names.schemas))
    for turn in turns:
        if turn.summary is not None:
            add(Author.PROMPT, folding.encode_request(dialect))
            add(Author.POLICY, folding.encode_summary(dialect, turn.summary))
            trajectory.folds.append(len(trajectory.segments))
            said = trajectory.policy_texts
            again = folding.begin_again(dialect, task.question, said, turn.summary)
            add(Author.PROMPT, dialect.prompt(again, names.schemas))
            continue
        add(Author.POLICY, encode_turn(dialect, turn.thoughts, _written_end(turn, dialect)))
        if turn.actions:
            said = turns_of(chains(trajectory)[-1])
            _require_read(task, turn, dialect, said)
        for index, text in enumerate(turn.observations):
            place = Place(index, len(turn.observations))
            add(Author.TOOL, dialect.encode_observation(text, place))

    outcome = dialect.parse(turns_of(chains(trajectory)[-1]))
    if isinstance(outcome, Answer):
        trajectory.status, trajectory.answer = Status.ANSWERED, outcome.text
    trajectory.well_formed = folding.is_well_formed(dialect, trajectory)
    return trajectory


def encode_pair(
    task: Task,
    before: Sequence[Step],
    ways: tuple[Sequence[Step], Sequence[Step]],
    dialect: Dialect,
    tools: Sequence[dict[str, Any]],
) -> tuple[Trajectory, Trajectory]:
    """Encode both ways to continue after `before`, as trajectories whose last segments differ.

    Each way is one policy turn, or the beginning of one where it ends in a thought. A thought that
    ends `before` begins that turn. Every turn is encoded whole, and the ids that both begin with
    become the last segment of the shared prefix; so each id is one that the policy could have
    sampled at that place.
    Raises Unwritable for ways that could not be sampled, or of which one begins with the other.
    """
    one, other = (_encode_way(task, _go_on(before, way), dialect, tools) for way in ways)
    last, rival = one.segments[-1].ids, other.segments[-1].ids
    shorter = min(len(last), len(rival))
    shared = next((i for i in range(shorter) if last[i] != rival[i]), shorter)
    if shared == shorter:
        told = f"In the pair of task {task.id} one side only begins the other."
        raise Unwritable(told, "whose one side only begins the other")
    for trajectory in (one, other):
        ids = trajectory.segments.pop().ids
        trajectory.segments += [
            Segment(Author.POLICY, part, dialect.tokenizer.decode(part))
            for part in (ids[:shared], ids[shared:])
            if part
        ]
    return one, other


def _go_on(before: Sequence[Step], way: Sequence[Step]) -> list[Step]:
    """Join the steps of `before` and a way. A thought that continues is on one line."""
    match [*before[-1:], *way[:1]]:
        case [Thought(begun, role), Thought(ended, other)] if role == other:
            return [*before[:-1], Thought(f"{begun} {ended}", role), *way[1:]]
    return [*before, *way]


def _encode_way(
    task: Task, steps: Sequence[Step], dialect: Dialect, tools: Sequence[dict[str, Any]]
) -> Trajectory:
    trajectory = encode_demonstration(task, steps, dialect, tools)
    if isinstance(steps[-1], Thought):  # the turn continues: neither a closing tag nor an end
        text = steps[-1].text.strip()
        ids = encode_written(
            dialect.tokenizer, dialect.write_thought(text).rpartition(text)[0] + text
        )
        trajectory.segments[-1] = Segment(Author.POLICY, ids, dialect.tokenizer.decode(ids))
    return trajectory


def reads_back(
    trajectory: Trajectory, last: Step, dialect: Dialect, tools: Sequence[dict[str, Any]]
) -> bool:
    """Return whether the dialect parses the last turn of one side of a pair into its own steps."""
    turns = [
        dialect.tokenizer.decode([i for segment in segments for i in segment.ids])
        for author, segments in groupby(trajectory.segments, key=lambda s: s.author)
        if author is Author.POLICY
    ]
    read = dialect.parse(turns)
    move = read[-1] if isinstance(read, tuple) else read
    if isinstance(move, Action):
        move = Names(trajectory.task, tools).meant(move)
    return move == (None if isinstance(last, Thought) else last)


def encode_turn(dialect: Dialect, thoughts: Sequence[Thought], end: str) -> list[int]:
    """Encode one policy turn as ids. Special tokens named in its text are text."""
    text = dialect.write_thoughts(thoughts) + end
    ids = encode_written(dialect.tokenizer, text)
    return ids if text.endswith(dialect.stop) else [*ids, dialect.end.token]


@dataclass(slots=True)
class _Turn:
    """Turn of the policy, and what its calls returned."""

    thoughts: list[Thought] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    answer: Answer | None = None
    summary: str | None = None  # then there is nothing else in the turn

    def end(self, dialect: Dialect) -> str:
        """Return the text after the thoughts."""
        if self.answer is not None:
            return dialect.write_answer(self.answer.text)
        return dialect.write_calls(self.actions) if self.actions else ""


def _written_end(turn: _Turn, dialect: Dialect) -> str:
    """Return the text after the thoughts of a turn. Raises Unwritable."""
    try:
        return turn.end(dialect)
    except UserError as error:
        reason = f"with a call that the dialect '{dialect.name}' cannot write"
        raise Unwritable(str(error), reason) from error


def _require_read(task: Task, turn: _Turn, dialect: Dialect, said: Sequence[str]) -> None:
    """Raise Unwritable unless the dialect reads the calls of the last turn as they are, whatever
    its thoughts say."""
    read, written = dialect.parse(said), dialect.write_calls(turn.actions)
    match read:
        case Answer(text) if text == written:  # calls that nobody runs
            return
        case tuple():
            calls = [move for move in read if isinstance(move, Action)]
            whole = len(calls) == len(read) == len(turn.actions)
            if whole and dialect.write_calls(calls) == written:
                return
    raise Unwritable(
        f"The dialect {dialect.name} does not read the calls in the demonstration of task {task.id}"
        " as they are, because a tag stands in a thought or a call, or a call is empty: correct it,"
        " or use the dialect hermes.",
        f"with a call that the dialect '{dialect.name}' does not read back",
    )


def require_order(task: Task, steps: Sequence[Step]) -> None:
    """Raise Unwritable for steps in an impossible order."""
    _turns(task, steps)


def _turns(task: Task, steps: Sequence[Step]) -> list[_Turn]:
    """Return the turns that steps make up. Raises Unwritable for an impossible order."""
    if not steps or isinstance(steps[0], Observation):
        told = f"The demonstration of task {task.id} must start with a thought or a move."
        raise Unwritable(told, "with no thought or move at their beginning")
    wrong_order = Unwritable(
        f"In the demonstration of task {task.id} every action must be followed by its observation,"
        " several actions in a row by as many, and an observation only by a thought or a move; a"
        " summary stands right after an observation.",
        "with steps in an impossible order",
    )
    turns = [_Turn()]
    for step in steps:
        observed = bool(turns[-1].observations)
        if turns[-1].summary is not None or (observed and not isinstance(step, Observation)):
            turns.append(_Turn())
        turn = turns[-1]
        if turn.answer is not None:
            told = f"The demonstration of task {task.id} has more steps after its answer."
            raise Unwritable(told, "with steps after their answer")
        match step:
            case Thought(text, Role.SUMMARY) if observed:
                turn.summary = text.strip()
            case Thought(text, role) if role is not Role.SUMMARY and not turn.actions:
                turn.thoughts.append(replace(step, text=text.strip()))
            case Action():
                turn.actions.append(step)
            case Observation(text):
                turn.observations.append(text)
            case Answer() if not turn.actions:
                turn.answer = step
            case _:
                raise wrong_order
    for turn in turns:
        if len(turn.observations) != len(turn.actions) and (
            turn is not turns[-1] or turn.observations
        ):
            raise wrong_order
    return turns


def answered_calls(steps: Sequence[Step]) -> list[Call]:
    """Return the calls that have an observation, in order: of the actions of a turn, the first has
    the first observation after them, and so on."""
    waiting: list[Action] = []
    calls: list[Call] = []
    for step in steps:
        match step:
            case Action():
                waiting.append(step)
            case Observation(text) if waiting:
                action = waiting.pop(0)
                calls.append(Call(action.tool, action.arguments, text, Outcome.OK, seconds=0.0))
            case _:
                waiting = []
    return calls
