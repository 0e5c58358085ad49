"""World of two domains, which a recipe can name.

Questions of Abacus need programs, and those of Atlas or of the gazetteer a search. Each is asked
with only the tool of its domain, which the prompt calls by its own name, or by one that does not
occur in training. So a model that was trained to call one tool can be tested on questions that need
the other one. The base model learns the contents of both domains: it reads the base texts of each,
and records of answered questions. The demonstrations of a domain add only how its tool is called.

Records are plain text. They hold thoughts, programs, queries and results, one per line, without
tool names or call syntax. A large model has read programs, and queries with their results, before
it is trained on tools; a base model trained from scratch reads these records instead.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain, islice
from typing import Any, ClassVar, Literal

from fieldcraft.config.components import ComponentKind
from fieldcraft.config.instantiation import instantiate
from fieldcraft.config.names import resolve
from fieldcraft.data.world import Demonstration, World
from fieldcraft.dialects.base import encode_policy_text
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.dialects.tool_names import CALLED_KEY, OFFERED_KEY, UNSEEN_NAMES
from fieldcraft.extensions.worlds.abacus.oracle import AbacusOracle
from fieldcraft.extensions.worlds.abacus.questions import SPLITS as ABACUS_SPLITS
from fieldcraft.extensions.worlds.abacus.questions import draw_train_tasks, make_abacus
from fieldcraft.extensions.worlds.abacus.world import AbacusWorld
from fieldcraft.extensions.worlds.atlas.questions import SPLITS as ATLAS_SPLITS
from fieldcraft.types import (
    Answer,
    Author,
    DemoStep,
    Dialect,
    Observation,
    Segment,
    Task,
    Thought,
    Tokenizer,
    ToolCall,
    Trajectory,
    UserError,
)

DOMAIN_TOOLS = {"code": "python", "search": "search"}  # domain -> its tool
SIGNATURES = ("python(code, stdin)", "search(query)")
OWN_NAME = "own"  # value for questions that use the tool's own name
SEVERAL_NAMES_SUFFIX = "_names"  # suffix of datasets that use the tool names of the recipe
BASE_SIZE = 40_000
BASE_SHARE = 0.35  # fraction of the base model's texts from each domain; the rest are records
NOTES_AT_ONCE = 200  # notes per notebook made for records


class DomainsWorld(World):
    """Abacus and Atlas in one world."""

    splits: ClassVar[Mapping[str, str]] = {
        "code": f"Abacus, with python alone: {ABACUS_SPLITS['heldout']}",
        "search": f"An encyclopedia, with search alone: {ATLAS_SPLITS['heldout']}",
        "code_unseen": "The first of code once more, with names that no training shows",
        "search_unseen": "The first of search once more, with names that no training shows",
        "code_known": f"Abacus, with python alone: {ABACUS_SPLITS['known']}",
        "search_known": f"An encyclopedia, with search alone: {ATLAS_SPLITS['known']}",
    }
    datasets = (
        "base",
        *DOMAIN_TOOLS,
        *(f"{domain}{SEVERAL_NAMES_SUFFIX}" for domain in DOMAIN_TOOLS),
    )
    toolless_datasets = ("base",)

    def __init__(
        self,
        seed: int,
        code: dict[str, Any] | None = None,
        search: dict[str, Any] | None = None,
        encyclopedia: Literal["atlas", "gazetteer"] = "atlas",
    ) -> None:
        """Make the worlds of both domains.

        Args:
            seed: seed of the run.
            code: settings of the world Abacus.
            search: settings of the world that is searched.
            encyclopedia: world that is searched. The gazetteer is for pretrained models: it has no
                texts for a base model. Every place is looked up.

        Raises:
            UserError: a setting is unknown to a world; or the world that is searched cannot be
                made.
        """
        super().__init__(seed)
        offered = {"seed": seed}
        self.code: AbacusWorld = instantiate(
            ComponentKind.WORLD, "abacus", AbacusWorld, code or {}, offered
        )
        self.search: World = instantiate(
            ComponentKind.WORLD,
            encyclopedia,
            resolve(ComponentKind.WORLD, encyclopedia),
            search or {},
            offered,
        )

    @property
    def worlds_by_domain(self) -> dict[str, World]:
        """World of each domain."""
        return {"code": self.code, "search": self.search}

    def passages(self) -> list[dict[str, str]]:
        return self.search.passages()

    def files(self) -> Mapping[str, str]:
        return self.code.files()

    def training_questions(self, count: int) -> list[Task]:
        half = count // len(self.worlds_by_domain)
        return [
            add_domain_tool(domain, task)
            for domain, part in self.worlds_by_domain.items()
            for task in part.training_questions(half)
        ]

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        found = []
        for domain, part in self.worlds_by_domain.items():
            unseen, known = f"{domain}_{UNSEEN_NAMES}", f"{domain}_known"
            sizes = {name: splits.get(name, 0) for name in (domain, unseen, known)}
            tasks = part.evaluation_questions(
                {"heldout": max(sizes[domain], sizes[unseen]), "known": sizes[known]}
            )
            for split, source_split, naming in (
                (domain, "heldout", OWN_NAME),
                (known, "known", OWN_NAME),
                (unseen, "heldout", UNSEEN_NAMES),
            ):
                drawn = [task for task in tasks if task.meta["split"] == source_split]
                found += [
                    _set_tool_naming(naming, add_domain_tool(domain, task), split)
                    for task in drawn[: sizes[split]]
                ]
        return found

    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        """Raise UserError: an example shows one tool by certain names, which its steps leave
        open."""
        return super().demonstrations(dataset, count)

    def encoded(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[Trajectory]:
        """Return the base texts of both domains, or the demonstrations of one domain, in which the
        tool has its own name or the names of the recipe."""
        if dataset == "base":
            if "base" not in self.search.datasets:
                raise UserError(
                    "the data set 'base' is for the encyclopedia atlas: leave the stage out, and"
                    " give a pretrained model."
                )
            return self._make_base_texts(
                BASE_SIZE if count is None else min(count, BASE_SIZE), encoder.dialect
            )
        domain = dataset.removesuffix(SEVERAL_NAMES_SUFFIX)
        tool = next(
            (t for t in encoder.schemas if t["function"]["name"] == DOMAIN_TOOLS[domain]), None
        )
        if tool is None or (dataset.endswith(SEVERAL_NAMES_SUFFIX) and CALLED_KEY not in tool):
            raise UserError(
                f"the data set '{dataset}' needs {'several names for ' if tool else ''}the tool"
                f" {DOMAIN_TOOLS[domain]}: {'set its key names' if tool else 'add it to tools'}."
            )
        if dataset == domain:
            tool = {key: value for key, value in tool.items() if key != CALLED_KEY}
        return self.worlds_by_domain[domain].encoded(
            "demonstrations", count, DemonstrationEncoder(encoder.dialect, [tool])
        )

    def _make_base_texts(self, count: int, dialect: Dialect) -> list[Trajectory]:
        """Return the base texts of both domains, none of which shows a tool."""
        share = round(count * BASE_SHARE)
        texts = [
            text
            for part in self.worlds_by_domain.values()
            for text in part.encoded("base", share, DemonstrationEncoder(dialect))
        ]
        half = (count - len(texts)) // 2
        reserved = frozenset(chain(*self.code.test_abacus.names.values()))
        answered = [
            *islice(iterate_sums(self.seed, reserved), half),
            *self.search.demonstrations("demonstrations", half),
        ]
        return texts + [make_record(*each, dialect.tokenizer) for each in answered]

    def tokenizer_texts(self, tags: Sequence[str]) -> Iterable[str]:
        texts = (part.tokenizer_texts(tags) for part in self.worlds_by_domain.values())
        return chain(*texts, SIGNATURES)

    @property
    def syllables(self) -> Sequence[str]:
        return list(
            dict.fromkeys(chain(*(part.syllables for part in self.worlds_by_domain.values())))
        )

    def small_copy(self) -> DomainsWorld:
        smaller = copy(self)
        smaller.search = self.search.small_copy()
        return smaller


def add_domain_tool(domain: str, task: Task) -> Task:
    """Return the question with only the tool of its domain."""
    return replace(task, meta={**task.meta, OFFERED_KEY: [DOMAIN_TOOLS[domain]]})


def _set_tool_naming(naming: str, task: Task, split: str) -> Task:
    """Return the question as part of a split, with the tool's own name or an unseen name."""
    identity = task.id if naming == OWN_NAME else f"{task.id}:{naming}"
    return replace(task, id=identity, meta={**task.meta, "split": split, CALLED_KEY: naming})


# -- records of answered questions -------------------------------------------------------------


def iterate_sums(seed: int, reserved: Collection[str]) -> Iterator[tuple[Task, list[DemoStep]]]:
    """Yield an infinite sequence of questions of Abacus, with a new notebook per batch, and their
    answers with the minimum number of programs. Names in `reserved` do not occur."""
    number = 0
    while True:
        rng = random.Random(f"records:{seed}:{number}")
        abacus = make_abacus(rng, NOTES_AT_ONCE, NOTES_AT_ONCE, set(reserved), heldout=False)
        for task in draw_train_tasks(abacus, rng.randrange(2**32), NOTES_AT_ONCE):
            yield task, AbacusOracle(abacus.notebook).demonstration(task)
        number += 1


def make_record(task: Task, steps: Sequence[DemoStep], tokenizer: Tokenizer) -> Trajectory:
    """Return the record of an answer. Tool output is read, not written, as for observations."""

    def make_segment(author: Author, text: str) -> Segment:
        return Segment(author, encode_policy_text(tokenizer, f"{text}\n"), f"{text}\n")

    segments = [make_segment(Author.PROMPT, task.question)]
    for step in steps:
        author = Author.TOOL if isinstance(step, Observation) else Author.POLICY
        segments.append(make_segment(author, _render_step(step)))
    return Trajectory(Task(f"record:{task.id}", "", ()), segments)


def _render_step(step: DemoStep) -> str:
    match step:
        case ToolCall(_, arguments):
            return "\n".join(map(str, arguments.values()))
        case Thought(text) | Observation(text) | Answer(text):
            return text.strip()
