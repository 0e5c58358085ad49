"""Sampling of problems for records, probes, training and each split of an evaluation."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from fieldcraft.extensions.worlds.distinct import (
    MAX_FAILURES,
    TRIES_PER_QUESTION,
    draw_distinct_items,
)
from fieldcraft.extensions.worlds.schoolbook.kinds import ENTRY, KINDS
from fieldcraft.extensions.worlds.schoolbook.problems import (
    Ability,
    Problem,
    draw_reserved_wording,
    draw_trained_wording,
)
from fieldcraft.extensions.worlds.schoolbook.records import (
    HELDOUT_ONE_IN,
    Entry,
    EntryState,
    iterate_names,
)
from fieldcraft.types import Task, UserError

HEAD_KINDS = [kind for kind in KINDS.values() if not kind.is_recorded]
RECORD_KINDS = [kind for kind in KINDS.values() if kind.is_recorded]
RECORD_SHARE = 0.3  # fraction of the questions with a number in the records
# Fractions of the entries of each kind that cannot be used as they are.
TROUBLE_SHARES: Mapping[str, Mapping[EntryState, float]] = {
    "record_sum": {EntryState.TEXT: 0.4, EntryState.RENAMED: 0.3},
    "record_product": {EntryState.RENAMED: 0.3},
    "record_share": {EntryState.ZERO: 0.3, EntryState.RENAMED: 0.2},
}
DEMONSTRABLE_ONE_IN = 3  # every third problem of training may be demonstrated
SPLITS = {
    "heldout": "New numbers and new people, asked as in training",
    "wordings": "The same in wordings never trained",
    "known": "Problems that the model solves in its head",
    "unknown": "One program is needed",
    "repair": "Records with an entry that a program cannot use as it is",
    "train": "Questions of training",
}


def list_head_groups() -> list[Problem]:
    """Return a problem without numbers for each group that a model might solve in its head."""
    return [Problem(kind, size, {}) for kind in HEAD_KINDS for size in kind.sizes]


def make_record_problems(rng: random.Random, count: int, heldout: bool) -> list[Problem]:
    """Make problems with an entry in the records, each of another person. Raises UserError if
    there are not enough names."""
    names = iterate_names(rng, heldout)
    problems: list[Problem] = []
    while len(problems) < count:
        kind = rng.choice(RECORD_KINDS)
        size = rng.choice(kind.sizes)
        numbers = kind.draw_numbers(rng, size)
        if numbers is None:
            continue
        shares = TROUBLE_SHARES[kind.name]
        [state] = rng.choices(
            [*shares, EntryState.NUMBER], [*shares.values(), 1 - sum(shares.values())]
        )
        found = [next(names, None) for _ in range(1 + (state is EntryState.RENAMED))]
        if found[-1] is None or found[0] is None:
            raise UserError(f"the world has only {len(problems)} names: ask for fewer records.")
        value = 0 if state is EntryState.ZERO else numbers[ENTRY]
        entry = Entry(found[0], value, state, found[-1])
        problems.append(Problem(kind, size, {**numbers, ENTRY: value}, entry))
    return problems


def is_demonstrable(problem: Problem) -> bool:
    """Return whether a problem of training may be demonstrated; the others are for reinforcement
    learning."""
    return zlib.crc32(f"shown:{problem.name}".encode()) % DEMONSTRABLE_ONE_IN == 0


@dataclass(frozen=True)
class ProblemSampler:
    """Sampler of random problems for evaluations (`heldout`) or for training.

    `recorded` are the problems of its side with an entry. The fraction `known` of the problems is
    drawn from the groups that the model can solve in its head, in addition to those drawn by
    chance.
    """

    ability: Ability
    recorded: Sequence[Problem]
    heldout: bool
    known: float = 0.0

    def draw(self, rng: random.Random) -> Problem | None:
        """Draw a problem of any kind; None if it belongs to the other side."""
        if self.known and rng.random() < self.known and self._known_groups:
            return self.draw_known(rng)
        if rng.random() < RECORD_SHARE:
            return rng.choice(self.recorded)
        kind = rng.choice(HEAD_KINDS)
        return self._draw_numbers(rng, Problem(kind, rng.choice(kind.sizes), {}))

    def draw_known(self, rng: random.Random) -> Problem | None:
        """Draw a problem that the model can solve in its head; None if there are none."""
        groups = self._known_groups
        return self._draw_numbers(rng, rng.choice(groups)) if groups else None

    @cached_property
    def _known_groups(self) -> list[Problem]:
        return [group for group in list_head_groups() if self.ability.is_known(group)]

    def draw_repair(self, rng: random.Random) -> Problem | None:
        problem = rng.choice(self.recorded)
        is_plain = problem.entry is None or problem.entry.state is EntryState.NUMBER
        return None if is_plain else problem

    def draw_unknown(self, rng: random.Random) -> Problem | None:
        problem = self.draw(rng)
        is_one = problem is not None and self.ability.count_optimal_calls(problem) == 1
        return problem if is_one else None

    def _draw_numbers(self, rng: random.Random, group: Problem) -> Problem | None:
        numbers = group.kind.draw_numbers(rng, group.size)
        if numbers is None:
            return None
        problem = replace(group, numbers=numbers)
        is_heldout = zlib.crc32(problem.name.encode()) % HELDOUT_ONE_IN == 0
        return problem if is_heldout == self.heldout else None


DrawProblem = Callable[[random.Random], Problem | None]


def draw_distinct(
    sampler: ProblemSampler,
    rng: random.Random,
    split: str,
    count: int,
    draw: DrawProblem,
) -> list[Task]:
    """Return up to `count` distinct questions of a split. A problem may be asked in several
    wordings, whose results are correlated."""

    def draw_task() -> Task | None:
        if (problem := draw(rng)) is None:
            return None
        is_reserved = split == "wordings"
        wording = draw_reserved_wording(problem, rng) if is_reserved else draw_trained_wording(rng)
        return sampler.ability.make_task(problem, split, wording)

    max_draws = TRIES_PER_QUESTION * count
    return [*islice(draw_distinct_items(draw_task, lambda t: t.id, MAX_FAILURES, max_draws), count)]


def draw_demonstrable(sampler: ProblemSampler, rng: random.Random, count: int) -> list[Problem]:
    """Return problems for demonstrations, with repetitions as drawn."""
    problems: list[Problem] = []
    while len(problems) < count:
        problem = sampler.draw(rng)
        if problem is not None and is_demonstrable(problem):
            problems.append(problem)
    return problems


def draw_train_tasks(sampler: ProblemSampler, seed: int, count: int) -> list[Task]:
    """Return up to `count` distinct questions for reinforcement learning."""

    def draw(rng: random.Random) -> Problem | None:
        problem = sampler.draw(rng)
        return None if problem is None or is_demonstrable(problem) else problem

    return draw_distinct(sampler, random.Random(f"tasks:{seed}"), "train", count, draw)


def draw_evaluation_tasks(sampler: ProblemSampler, seed: int, split: str, count: int) -> list[Task]:
    """Return up to `count` distinct questions of a split, none of whose problems occur in
    training."""
    draws: Mapping[str, DrawProblem] = {
        "known": sampler.draw_known,
        "unknown": sampler.draw_unknown,
        "repair": sampler.draw_repair,
    }
    draw = draws.get(split, sampler.draw)
    return draw_distinct(sampler, random.Random(f"{split}:{seed}"), split, count, draw)
