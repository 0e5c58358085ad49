"""Two domains as one world that a recipe can name.

Questions of Abacus need programs, and those of Atlas a search. Each is asked with the tool of its
domain alone, which the prompt describes by its own name, or by one that no training shows. So a
model that was trained to call one tool can be asked questions that need the other one. The base
model learns what both domains are about: it reads the base texts of each, and records of how
questions are answered. What the demonstrations of a domain add is how its tool is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain, islice
from typing import Any, ClassVar

from fieldcraft.config.making import make_part
from fieldcraft.config.names import Kind
from fieldcraft.dialects.naming import CALLED, OFFERED, UNSEEN
from fieldcraft.types import Dialect, Task, Trajectory, UserError
from fieldcraft.worlds.abacus.questions import SPLITS as ABACUS
from fieldcraft.worlds.abacus.world import AbacusWorld
from fieldcraft.worlds.atlas.questions import SPLITS as ATLAS
from fieldcraft.worlds.atlas.world import AtlasWorld
from fieldcraft.worlds.base import Schemas, World
from fieldcraft.worlds.domains.records import record, sums

TOOLS = {"code": "python", "search": "search"}  # domain -> its tool
SIGNATURES = ("python(code, stdin)", "search(query)")
OWN = "own"  # of a question: it calls a tool by the tool's own name
SEVERAL = "_names"  # ends the data sets that call a tool by the names of the recipe
BASE_SIZE = 40_000
BASE_SHARE = 0.35  # of the base model's texts are base texts of one domain; the others are records


class DomainsWorld(World):
    """Abacus and Atlas side by side."""

    splits: ClassVar[Mapping[str, str]] = {
        "code": f"Abacus, with python alone: {ABACUS['heldout']}",
        "search": f"Atlas, with search alone: {ATLAS['heldout']}",
        "code_unseen": "The first of code once more, with names that no training shows",
        "search_unseen": "The first of search once more, with names that no training shows",
        "code_known": f"Abacus, with python alone: {ABACUS['known']}",
        "search_known": f"Atlas, with search alone: {ATLAS['known']}",
    }
    datasets = ("base", *TOOLS, *(f"{domain}{SEVERAL}" for domain in TOOLS))
    toolless = ("base",)

    def __init__(
        self,
        seed: int,
        code: dict[str, Any] | None = None,
        search: dict[str, Any] | None = None,
    ) -> None:
        """Make the worlds of both domains.

        Args:
            seed: of the run.
            code: settings of the world Abacus.
            search: settings of the world Atlas.

        Raises:
            UserError: a setting that a world does not have; Atlas would have no entities of a kind,
                or none to ask about.
        """
        super().__init__(seed)
        offered = {"seed": seed}
        self.code: AbacusWorld = make_part(Kind.WORLD, "abacus", AbacusWorld, code or {}, offered)
        self.search: AtlasWorld = make_part(Kind.WORLD, "atlas", AtlasWorld, search or {}, offered)

    @property
    def parts(self) -> dict[str, World]:
        """The world of each domain."""
        return {"code": self.code, "search": self.search}

    def passages(self) -> list[dict[str, str]]:
        return self.search.passages()

    def files(self) -> Mapping[str, str]:
        return self.code.files()

    def training_questions(self, count: int) -> list[Task]:
        half = count // len(self.parts)
        return [
            with_tool_of(domain, task)
            for domain, part in self.parts.items()
            for task in part.training_questions(half)
        ]

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        found = []
        for domain, part in self.parts.items():
            names = {"heldout": domain, "known": f"{domain}_known"}
            sizes = {own: splits.get(name, 0) for own, name in names.items()}
            asked = [with_tool_of(domain, task) for task in part.evaluation_questions(sizes)]
            found += [_called(OWN, task, names[task.meta["split"]]) for task in asked]
            first = [task for task in asked if task.meta["split"] == "heldout"]
            again = f"{domain}_{UNSEEN}"
            found += [_called(UNSEEN, task, again) for task in first[: splits.get(again, 0)]]
        return found

    def demonstrations(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[Trajectory]:
        """Return the base texts of both domains; or the demonstrations of one, whose tool is called
        by its own name or by the names of the recipe."""
        if data == "base":
            return self._base(BASE_SIZE if count is None else min(count, BASE_SIZE), dialect)
        domain = data.removesuffix(SEVERAL)
        tool = next((t for t in tools if t["function"]["name"] == TOOLS[domain]), None)
        if tool is None or (data.endswith(SEVERAL) and CALLED not in tool):
            raise UserError(
                f"the data set '{data}' needs the tool {TOOLS[domain]}"
                f"{' under several names: give it called' if tool else ': add it to tools'}."
            )
        if data == domain:
            tool = {key: value for key, value in tool.items() if key != CALLED}
        return self.parts[domain].demonstrations("demonstrations", count, dialect, [tool])

    def _base(self, count: int, dialect: Dialect) -> list[Trajectory]:
        """Return the base texts of both domains. None of them shows a tool."""
        share = round(count * BASE_SHARE)
        texts = [
            text
            for part in self.parts.values()
            for text in part.demonstrations("base", share, dialect, [])
        ]
        half = (count - len(texts)) // 2
        reserved = frozenset(chain(*self.code.testing.names.values()))
        answered = [
            *islice(sums(self.seed, reserved), half),
            *self.search.shown("demonstrations", half, dialect, []),
        ]
        return texts + [record(*each, dialect.tokenizer) for each in answered]

    def tokenizer_texts(self, tags: Sequence[str]) -> Iterable[str]:
        texts = (part.tokenizer_texts(tags) for part in self.parts.values())
        return chain(*texts, SIGNATURES)

    @property
    def syllables(self) -> Sequence[str]:
        return list(dict.fromkeys(chain(*(part.syllables for part in self.parts.values()))))

    def reduced(self) -> DomainsWorld:
        few = copy(self)
        few.search = self.search.reduced()
        return few


def with_tool_of(domain: str, task: Task) -> Task:
    """Return the question with the tool of its domain alone."""
    return replace(task, meta={**task.meta, OFFERED: [TOOLS[domain]]})


def _called(by: str, task: Task, split: str) -> Task:
    """Return the question of a split, whose tool has its own name or one that no training shows."""
    identity = task.id if by == OWN else f"{task.id}:{by}"
    return replace(task, id=identity, meta={**task.meta, "split": split, CALLED: by})
