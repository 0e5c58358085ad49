"""Filters of demonstrations: rules with names, one after the other, and what each of them did.

A rule is a function of a chain and a context, or a class whose arguments are settings of the recipe
and whose objects are such functions. It returns (keep, reason): False or 0 leaves the chain out,
and a number above 1 repeats it. A rule that asks whether the answer is right is `async`. `rules.py`
has the built-in ones.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from fieldcraft.config.making import make_part
from fieldcraft.config.names import Kind, cause_of, find, shown
from fieldcraft.data.funnel import Cut, Example, few
from fieldcraft.data.grading import Grader
from fieldcraft.data.steps_io import as_trajectory, step_records
from fieldcraft.dialects.afm import PASSING, POOR, grades_of, score_of
from fieldcraft.types import Action, Answer, Dialect, Role, Step, Task, Thought, UserError

MOST_COPIES = 100


class Chain(NamedTuple):
    """A demonstration: a question, and the steps that answer it."""

    task: Task
    steps: Sequence[Step]

    @property
    def calls(self) -> list[Action]:
        return [step for step in self.steps if isinstance(step, Action)]

    @property
    def blocks(self) -> list[tuple[Role, str]]:
        """Role and text of what was thought. Thoughts of one role that follow one another are one
        block."""
        groups = groupby(self.steps, key=lambda s: s.role if isinstance(s, Thought) else None)
        return [
            (role, "\n\n".join(step.text for step in group if isinstance(step, Thought)))
            for role, group in groups
            if role is not None
        ]

    @property
    def interactions(self) -> int:
        """Return how many agents and tools were at work: calls, and blocks of all roles but
        thinking, which stands before each of them."""
        return len(self.calls) + sum(role is not Role.THINK for role, _ in self.blocks)

    @property
    def hops(self) -> int:
        """Return how often the chain went to its tools and came back: the calls of one turn are
        one."""
        acts = [isinstance(step, Action) for step in self.steps]
        return sum(act and not before for before, act in pairwise([False, *acts]))

    @property
    def answer(self) -> str | None:
        last = self.steps[-1] if self.steps else None
        return last.text if isinstance(last, Answer) else None

    @property
    def reflects(self) -> bool:
        return any(role is Role.REFLECT for role, _ in self.blocks)

    @property
    def corrects(self) -> bool:
        """Return whether a check failed on the way: a double check below PASSING, or a poor
        grade."""
        return any(
            (role is Role.CHECK and (score_of(text) or PASSING) < PASSING)
            or (role is Role.REFLECT and POOR.lower() in grades_of(text).values())
            for role, text in self.blocks
        )

    @property
    def text(self) -> str:
        """Text of everything in the chain."""
        return f"{self.task.question}\n{step_records(self.steps)}"


@dataclass(frozen=True)
class FilterContext:
    """Knowledge of a rule beside the chain. `draw` is a random number from 0 to 1, which follows
    from the seed, the rule and the chain alone."""

    dialect: Dialect
    grader: Grader
    draw: float = 0.0

    async def verdict(self, chain: Chain) -> bool | None:
        """Return whether the answer is right; None where that cannot be told."""
        return await self.grader.right(*chain)


class Verdict(NamedTuple):
    """Number of times that a chain is kept, and the reason where that is not once."""

    keep: int
    reason: str = ""


KEPT = Verdict(1)
Told = tuple[int, str]  # keep, and the reason
Rule = Callable[[Chain, FilterContext], Told | Awaitable[Told]]


@dataclass(frozen=True)
class Filtered:
    """Chains that are kept, repetitions side by side; those that are not, with rule and reason; and
    the counts."""

    kept: list[Chain]
    dropped: list[tuple[Chain, str, str]]
    cuts: list[Cut]

    @property
    def examples(self) -> list[Example]:
        """A few of what each rule left out, and of what was kept."""
        left = [_example(chain, rule, reason) for chain, rule, reason in self.dropped]
        return few([*(_example(chain) for chain in self.kept), *left])


def _example(chain: Chain, rule: str = "", reason: str = "") -> Example:
    text = "".join(segment.text for segment in as_trajectory(*chain).segments)
    return Example(rule, reason, chain.task.question, chain.task.answers, text)


def make_rule(name: str, settings: Mapping[str, Any]) -> Rule:
    """Return the rule of a name. Raises UserError for an unknown name or setting, for a file of the
    settings that is not there, and for something that is no rule."""
    part = find(Kind.FILTER, name)
    if inspect.isfunction(part) and len(inspect.signature(part).parameters) == 2:
        if settings:
            raise UserError(
                f"the filter '{name}' is a function, which takes no settings: remove"
                f" '{next(iter(settings))}', or write a class."
            )
        return part
    rule = make_part(Kind.FILTER, name, part, settings, {}) if isinstance(part, type) else None
    if not callable(rule):
        raise UserError(
            f"the filter '{name}' is neither a function of a chain and a context nor a class with"
            " __call__(chain, context): write one of them, as docs/extending.md shows."
        )
    return rule


async def apply_filters(
    chains: Sequence[tuple[Task, Sequence[Step]]],
    filters: Mapping[str, Mapping[str, Any]],
    dialect: Dialect,
    grader: Grader,
    seed: int,
) -> Filtered:
    """Apply rules, in their order, each to what the one before it left. A rule sees the chains in
    their order; one that is `async` is done with them side by side.

    Raises UserError as `make_rule` does, and for a rule that fails or returns no verdict.
    """
    left = [(Chain(*chain), 1) for chain in chains]
    dropped: list[tuple[Chain, str, str]] = []
    cuts: list[Cut] = []
    for name, settings in filters.items():
        rule = make_rule(name, settings)
        before, left, reasons = left, [], Counter[str]()
        draws = (random.Random(f"{seed}:{name}:{chain.text}").random() for chain, _ in before)
        contexts = [FilterContext(dialect, grader, draw) for draw in draws]
        pairs = zip(before, contexts, strict=True)
        said = await asyncio.gather(*(_judged(name, rule, c, context) for (c, _), context in pairs))
        for (chain, copies), (keep, reason) in zip(before, said, strict=True):
            if keep:
                left.append((chain, copies * keep))
            else:
                dropped.append((chain, name, reason))
                reasons[reason] += copies
        came, went = sum(n for _, n in before), sum(n for _, n in left)
        repeated = went + reasons.total() - came
        cuts.append(Cut(name, settings, came, went, dict(reasons.most_common()), repeated))
    return Filtered([chain for chain, n in left for _ in range(n)], dropped, cuts)


async def _judged(name: str, rule: Rule, chain: Chain, context: FilterContext) -> Verdict:
    try:
        found: Any = rule(chain, context)
        if inspect.isawaitable(found):
            found = await found
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the filter '{name}' failed ({cause_of(error)}): correct it.") from error
    match found:
        case (int(keep), str(reason)) if 0 <= keep <= MOST_COPIES:
            return Verdict(int(keep), reason if keep else reason or "no reason given")
    raise UserError(
        f"the filter '{name}' returned {shown(found)}: let it return (keep, reason), with True,"
        f" False or a number from 0 to {MOST_COPIES}."
    )


def profile(chains: Sequence[Chain]) -> dict[str, float]:
    """Return the figures of a set of chains, for its card."""
    count = max(len(chains), 1)
    return {
        "chains": len(chains),
        "questions": len({chain.task.id for chain in chains}),
        "interactions, mean": sum(c.interactions for c in chains) / count,
        "calls, mean": sum(len(c.calls) for c in chains) / count,
        "hops, mean": sum(c.hops for c in chains) / count,
        "different tools, mean": sum(len({a.tool for a in c.calls}) for c in chains) / count,
        "with a reflection, share": sum(c.reflects for c in chains) / count,
        "with a repaired error, share": sum(c.corrects for c in chains) / count,
    }
