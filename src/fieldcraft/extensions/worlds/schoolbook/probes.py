"""Probes of what a model can calculate without a tool.

A probe is a prompt to complete: three solved problems of the same group, and an open one. The
solutions have the form of the thoughts in demonstrations, `12 * 3 = 36, 36 + 4 = 40`, so a model
may calculate step by step; its answer is the last result. Probes are the same in every run.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import islice
from statistics import fmean

from fieldcraft.extensions.worlds.distinct import draw_distinct_items
from fieldcraft.extensions.worlds.schoolbook.kinds import ProblemKind
from fieldcraft.extensions.worlds.schoolbook.problems import (
    Ability,
    Problem,
    draw_trained_wording,
)
from fieldcraft.extensions.worlds.schoolbook.sampling import list_head_groups
from fieldcraft.types import Task

PROBES_PER_GROUP = 6
NUM_EXAMPLES = 3
MAX_PROBE_TOKENS = 40  # three operations with three digits
ID_SEPARATOR = "|"  # between the group and the number of a probe


def make_probes() -> list[Task]:
    """Return the probes of all groups."""
    return [probe for group in list_head_groups() for probe in _make_group_probes(group)]


def _make_group_probes(group: Problem) -> list[Task]:
    rng = random.Random(f"probes:{group.group}")
    problems = _draw_distinct(rng, group.kind, group.size, NUM_EXAMPLES + PROBES_PER_GROUP)
    examples = "".join(
        f"{_render_question(each, rng)} {each.statement.removeprefix('It is ').rstrip('.')}\n\n"
        for each in problems[:NUM_EXAMPLES]
    )
    return [
        Task(
            f"{group.group}{ID_SEPARATOR}{number}",
            f"{examples}{_render_question(each, rng)}",
            (str(each.answer),),
            {"kind": group.group},
        )
        for number, each in enumerate(problems[NUM_EXAMPLES:])
    ]


def _draw_distinct(rng: random.Random, kind: ProblemKind, size: int, count: int) -> list[Problem]:
    """Return distinct problems of a group, fewer if a group is that small."""

    def draw() -> Problem | None:
        numbers = kind.draw_numbers(rng, size)
        return None if numbers is None else Problem(kind, size, numbers)

    max_draws = 20 * count
    return [*islice(draw_distinct_items(draw, lambda p: p.name, max_draws, max_draws), count)]


def _render_question(problem: Problem, rng: random.Random) -> str:
    return f"Q: {problem.render_question(draw_trained_wording(rng))}\nA:"


def make_ability(rates: Mapping[str, float]) -> Ability:
    """Return the ability of a model with these rates of correct answers, by id of the probe: their
    mean in each group."""
    by_group: dict[str, list[float]] = {}
    for probe, rate in rates.items():
        by_group.setdefault(probe.partition(ID_SEPARATOR)[0], []).append(rate)
    return Ability({group: fmean(found) for group, found in by_group.items()})
