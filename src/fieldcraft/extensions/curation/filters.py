"""Filters of demonstrations: named rules applied in sequence, with statistics of each.

A rule is a function of a chain and a context, or a class whose arguments are recipe settings and
whose instances are such functions. It returns (keep, reason): False or 0 drops the chain, and a
number above 1 repeats it. A rule that checks whether the answer is correct is `async`. The
built-in rules are in `builtin_filters.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from fieldcraft.config.components import ComponentKind
from fieldcraft.config.instantiation import instantiate
from fieldcraft.config.names import describe_exception, format_short, resolve
from fieldcraft.data.grading import Grader
from fieldcraft.data.steps_io import make_untokenised_trajectory, serialise_steps
from fieldcraft.dialects.afm_grades import MIN_PASSING_SCORE, POOR_GRADE, parse_grades, parse_score
from fieldcraft.types import (
    Answer,
    DemoStep,
    Dialect,
    Task,
    Thought,
    ThoughtRole,
    ToolCall,
    UserError,
)

MAX_COPIES = 100
SCHEMA_VERSION = 1
EXAMPLES_PER_REASON = 3  # examples of dropped items


class Demonstration(NamedTuple):
    """A demonstration: a question, and the steps that answer it."""

    task: Task
    steps: Sequence[DemoStep]

    @property
    def calls(self) -> list[ToolCall]:
        return [step for step in self.steps if isinstance(step, ToolCall)]

    @property
    def blocks(self) -> list[tuple[ThoughtRole, str]]:
        """Role and text of each thought block. Consecutive thoughts of the same role form one
        block."""
        groups = groupby(self.steps, key=lambda s: s.role if isinstance(s, Thought) else None)
        return [
            (role, "\n\n".join(step.text for step in group if isinstance(step, Thought)))
            for role, group in groups
            if role is not None
        ]

    @property
    def num_interactions(self) -> int:
        """Number of actions of agents and tools: calls, and blocks of all roles except thinking,
        which precedes each of them."""
        return len(self.calls) + sum(role is not ThoughtRole.THINK for role, _ in self.blocks)

    @property
    def num_hops(self) -> int:
        """Number of round trips to the tools: the calls of one turn count as one."""
        is_call = [isinstance(step, ToolCall) for step in self.steps]
        return sum(act and not before for before, act in pairwise([False, *is_call]))

    @property
    def answer(self) -> str | None:
        last = self.steps[-1] if self.steps else None
        return last.text if isinstance(last, Answer) else None

    @property
    def has_reflection(self) -> bool:
        return any(role is ThoughtRole.REFLECT for role, _ in self.blocks)

    @property
    def has_repaired_error(self) -> bool:
        """Return whether an intermediate check failed: a double check below MIN_PASSING_SCORE, or
        a poor grade."""
        return any(
            (
                role is ThoughtRole.CHECK
                and (parse_score(text) or MIN_PASSING_SCORE) < MIN_PASSING_SCORE
            )
            or (role is ThoughtRole.REFLECT and POOR_GRADE.lower() in parse_grades(text).values())
            for role, text in self.blocks
        )

    @property
    def text(self) -> str:
        """The question and all steps of the chain as text."""
        return f"{self.task.question}\n{serialise_steps(self.steps)}"


@dataclass(frozen=True)
class FilterContext:
    """Inputs of a rule in addition to the chain. `draw` is a random number from 0 to 1, determined
    by the seed, the rule and the chain."""

    dialect: Dialect
    grader: Grader
    draw: float = 0.0

    async def grade(self, demonstration: Demonstration) -> bool | None:
        """Return whether the answer is correct, or None if it cannot be graded."""
        return await self.grader.grade(*demonstration)


class FilterDecision(NamedTuple):
    """Number of copies of a chain to keep, and the reason if it is not one."""

    keep: int
    reason: str = ""


KEEP = FilterDecision(1)
FilterOutput = tuple[int, str]  # keep, and the reason
FilterFunction = Callable[[Demonstration, FilterContext], FilterOutput | Awaitable[FilterOutput]]


@dataclass(frozen=True)
class FilterResult:
    """Accepted chains, with repetitions in sequence; dropped chains with rule and reason; and the
    counts."""

    accepted: list[Demonstration]
    dropped: list[tuple[Demonstration, str, str]]
    stages: list[FilterStage]

    @property
    def examples(self) -> list[CardExample]:
        """A few examples of what each rule dropped, and of accepted chains."""
        rejected = [make_card_example(chain, rule, reason) for chain, rule, reason in self.dropped]
        return pick_examples([*(make_card_example(chain) for chain in self.accepted), *rejected])


def make_card_example(
    demonstration: tuple[Task, Sequence[DemoStep]], rule: str = "", reason: str = ""
) -> CardExample:
    """Return an example of a data card: a demonstration, and why it was left out, if it was."""
    task, steps = demonstration
    text = "".join(segment.text for segment in make_untokenised_trajectory(task, steps).segments)
    return CardExample(rule, reason, task.question, task.answers, text)


def make_filter(name: str, settings: Mapping[str, Any]) -> FilterFunction:
    """Return the rule with a given name. Raises UserError for an unknown name or setting, for a
    missing file named in the settings, and for an object that is not a rule."""
    factory = resolve(ComponentKind.FILTER, name)
    if inspect.isfunction(factory) and len(inspect.signature(factory).parameters) == 2:
        if settings:
            raise UserError(
                f"the filter '{name}' is a function, which accepts no settings: remove"
                f" '{next(iter(settings))}', or write a class."
            )
        return factory
    filter_function = (
        instantiate(ComponentKind.FILTER, name, factory, settings, {})
        if isinstance(factory, type)
        else None
    )
    if not callable(filter_function):
        raise UserError(
            f"the filter '{name}' is neither a function of a chain and a context nor a class with"
            " __call__(chain, context): write one of them, as docs/extending.md shows."
        )
    return filter_function


async def apply_filters(
    demonstrations: Sequence[tuple[Task, Sequence[DemoStep]]],
    filters: Mapping[str, Mapping[str, Any]],
    dialect: Dialect,
    grader: Grader,
    seed: int,
) -> FilterResult:
    """Apply rules in order, each to the output of the previous one. A rule receives the chains in
    order; an `async` rule processes them concurrently.

    Raises UserError as `make_filter` does, and if a rule fails or returns an invalid decision.
    """
    remaining = [(Demonstration(*demonstration), 1) for demonstration in demonstrations]
    dropped: list[tuple[Demonstration, str, str]] = []
    stages: list[FilterStage] = []
    for name, settings in filters.items():
        filter_function = make_filter(name, settings)
        before, remaining, reasons = remaining, [], Counter[str]()
        draws = (
            random.Random(f"{seed}:{name}:{demonstration.text}").random()
            for demonstration, _ in before
        )
        contexts = [FilterContext(dialect, grader, draw) for draw in draws]
        pairs = zip(before, contexts, strict=True)
        decisions = await asyncio.gather(
            *(_run_filter(name, filter_function, c, context) for (c, _), context in pairs)
        )
        for (demonstration, copies), (keep, reason) in zip(before, decisions, strict=True):
            if keep:
                remaining.append((demonstration, copies * keep))
            else:
                dropped.append((demonstration, name, reason))
                reasons[reason] += copies
        num_before, num_after = sum(n for _, n in before), sum(n for _, n in remaining)
        repeated = num_after + reasons.total() - num_before
        stages.append(
            FilterStage(
                name, settings, num_before, num_after, dict(reasons.most_common()), repeated
            )
        )
    return FilterResult(
        [demonstration for demonstration, n in remaining for _ in range(n)], dropped, stages
    )


async def _run_filter(
    name: str, filter_function: FilterFunction, demonstration: Demonstration, context: FilterContext
) -> FilterDecision:
    try:
        found: Any = filter_function(demonstration, context)
        if inspect.isawaitable(found):
            found = await found
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the filter '{name}' failed ({describe_exception(error)}): correct it."
        ) from error
    match found:
        case (int(keep), str(reason)) if 0 <= keep <= MAX_COPIES:
            return FilterDecision(int(keep), reason if keep else reason or "no reason given")
    raise UserError(
        f"the filter '{name}' returned {format_short(found)}: let it return (keep, reason), with"
        f" True, False or a number from 0 to {MAX_COPIES}."
    )


def summarise_demonstrations(demonstrations: Sequence[Demonstration]) -> dict[str, float]:
    """Return summary statistics of a set of chains, for its dataset card."""
    count = max(len(demonstrations), 1)
    return {
        "chains": len(demonstrations),
        "questions": len({demonstration.task.id for demonstration in demonstrations}),
        "interactions, mean": sum(c.num_interactions for c in demonstrations) / count,
        "calls, mean": sum(len(c.calls) for c in demonstrations) / count,
        "hops, mean": sum(c.num_hops for c in demonstrations) / count,
        "different tools, mean": sum(len({a.tool for a in c.calls}) for c in demonstrations)
        / count,
        "with a reflection, share": sum(c.has_reflection for c in demonstrations) / count,
        "with a repaired error, share": sum(c.has_repaired_error for c in demonstrations) / count,
    }


# -- data card ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FilterStage:
    """One rule: the number of items before and after it, counts of dropped items by reason, and the
    number of repetitions among the items that passed."""

    name: str
    settings: Mapping[str, Any]
    before: int
    after: int
    dropped: Mapping[str, int]
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class CardExample:
    """A dropped or accepted (rule "") item, as text."""

    rule: str
    reason: str
    question: str
    answers: Sequence[str]
    text: str = ""


@dataclass(frozen=True, slots=True)
class DataCard:
    """Contents of a data card.

    `figures` is a table, row -> column -> number, such as a mean before and after the rules.
    """

    title: str
    unit: str  # of the counts, such as "demonstrations"
    seed: int
    settings: Mapping[str, Any]
    cuts: Sequence[FilterStage]
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    examples: Sequence[CardExample] = ()

    def to_record(self) -> dict[str, Any]:
        """Return the card as JSON values: the contents of card.json."""
        return {"schema": SCHEMA_VERSION, **asdict(self)}


def pick_examples(examples: Sequence[CardExample]) -> list[CardExample]:
    """Return the first EXAMPLES_PER_REASON examples of each rule and reason, in order."""
    found: dict[tuple[str, str], list[CardExample]] = {}
    for example in examples:
        found.setdefault((example.rule, example.reason), []).append(example)
    return [example for group in found.values() for example in group[:EXAMPLES_PER_REASON]]
