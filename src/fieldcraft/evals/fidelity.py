"""How faithful simulated observations are: against the truth of a world, or against the real tool.

A call whose real observation cannot be told (a name that the world does not know, as a miswritten
query is; a tool that fails) has no verdict and is counted apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fieldcraft.rewards.answers import f1, normalise
from fieldcraft.tools.search.passages import read_results
from fieldcraft.types import Call, Outcome, Task, Tool, ToolError, Trajectory, UserError
from fieldcraft.worlds.atlas.facts import Atlas, is_article, stated_facts

HEADS = {"holds": "holds", "contradicts": "contradicts", "well_formed": "form", "f1": "F1"}
RATES = tuple(HEADS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one simulated observation is worth; None is what cannot be told.

    `holds`: it says what the real one would have said and the step needed. `contradicts`: it says
    something else of what the truth is known of. `well_formed`: it reads as results of the tool.
    `f1`: shared words with the real text. `taught`: the base model was taught the entity.
    """

    well_formed: bool
    holds: bool | None
    contradicts: bool | None = None
    f1: float | None = None
    taught: bool | None = None


Verdicts = list[Verdict | None]


def simulated_calls(trajectory: Trajectory) -> list[Call]:
    return [call for call in trajectory.calls if call.simulated]


# -- against the truth of a world ----------------------------------------------------------------


def judge_by_world(world: Atlas, trajectory: Trajectory) -> Verdicts:
    """A verdict on each simulated call, without calling any tool.

    Needed are the facts of the question's path that stand in the article of the searched entity and
    that no earlier observation has told; where the path needs none of it, the whole article.
    """
    path = _path_facts(world, trajectory.task)
    told: set[tuple[str, str]] = set()
    found: Verdicts = []
    for call in simulated_calls(trajectory):
        stated = stated_facts(call.observation)
        true = {(s, r) for s, r, v in stated if world.facts.get((s, r)) == v}
        wrong = any(world.facts.get((s, r), v) != v for s, r, v in stated)
        name = call.arguments.get("query")
        if isinstance(name, str) and name in world.entities:
            article = world.reveals(name)
            needed = (path & article) - told or article
            taught = world.entities[name].region == "taught"
            form = call.outcome is Outcome.OK and _reads_as_articles(call.observation)
            found.append(Verdict(form, needed <= true, wrong, taught=taught))
        else:
            found.append(None)
        told |= true
    return found


def _path_facts(world: Atlas, task: Task) -> set[tuple[str, str]]:
    """(subject, relation) along a question's path; none where the question names no path."""
    path = task.meta.get("path")
    try:
        return {(s, r) for s, r, _ in world.hops(tuple(path))} if path else set()
    except KeyError:
        raise UserError(
            f"task '{task.id}' is not of this run's world: give the questions of its world folder."
        ) from None


def _reads_as_articles(text: str) -> bool:
    results = read_results(text)
    return results is not None and all(is_article(title, body) for title, body in results)


# -- against the real tool -----------------------------------------------------------------------


async def judge_by_tool(tool: Tool, trajectory: Trajectory) -> Verdicts:
    """A verdict on each simulated call by what the tool returns for it. `holds` looks at the gold
    answers that stand in the real text; where none does, it cannot be told."""
    golds = {normalise(gold) for gold in trajectory.task.answers} - {""}
    found: Verdicts = []
    for call in simulated_calls(trajectory):
        real = await _real_observation(tool, call)
        if real is None:
            found.append(None)
            continue
        there = {gold for gold in golds if _stands_in(gold, real)}
        found.append(
            Verdict(
                call.outcome is Outcome.OK and read_results(call.observation) is not None,
                any(_stands_in(gold, call.observation) for gold in there) if there else None,
                f1=f1(call.observation, [real]),
            )
        )
    return found


async def _real_observation(tool: Tool, call: Call) -> str | None:
    """None where the real tool gives no results either."""
    if call.tool != tool.name:
        return None
    try:
        return await tool(**call.arguments)
    except ToolError:
        return None


def _stands_in(gold: str, text: str) -> bool:
    """Whether the words of a normalised answer follow one another in a text."""
    return f" {gold} " in f" {normalise(text)} "


# -- summaries -----------------------------------------------------------------------------------


def summarise_fidelity(verdicts: Sequence[Verdict | None]) -> dict[str, Any]:
    """`n` judged observations and their rates, in all and for taught and untaught entities (None
    where there are none); `unknown` is how many have no verdict. A rate is None where nothing can
    be told; `holds_n` is how many observations `holds` could be told of."""
    judged = [verdict for verdict in verdicts if verdict is not None]
    parts = {
        "taught": [v for v in judged if v.taught is True],
        "untaught": [v for v in judged if v.taught is False],
    }
    return {
        **_rates(judged),
        "unknown": len(verdicts) - len(judged),
        **{name: _rates(part) if part else None for name, part in parts.items()},
    }


def _rates(judged: Sequence[Verdict]) -> dict[str, Any]:
    told = sum(verdict.holds is not None for verdict in judged)
    rates = {name: _mean(getattr(v, name) for v in judged) for name in RATES}
    return {"n": len(judged), "holds_n": told, **rates}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None


def fidelity_row(world: Atlas, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The metrics of a simulated step: `fidelity/holds`, `fidelity/taught/holds`, ... Rates of
    nothing are left out."""
    summary = summarise_fidelity([v for t in trajectories for v in judge_by_world(world, t)])
    row = {"fidelity/n": summary["n"], "fidelity/unknown": summary["unknown"]}
    for place, part in (("", summary), *((f"{p}/", summary[p]) for p in ("taught", "untaught"))):
        rates = {name: part[name] for name in RATES} if part else {}
        row |= {f"fidelity/{place}{k}": rate for k, rate in rates.items() if rate is not None}
    return row


def fidelity_table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Rows a model: all simulated searches, those for taught and those for untaught entities.
    `found` maps a model to {"fidelity", "em_simulated", "em_real"}."""
    rates = [rate for rate in RATES if _is_told(rate, found)]
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold")
    for head in ("calls", *(HEADS[rate] for rate in rates), "no truth", "EM simulated", "EM real"):
        table.add_column(head)
    for name, entry in found.items():
        summary = entry["fidelity"]
        ems = (_figure(entry["em_simulated"]), _figure(entry["em_real"]))
        row = _cells(summary, rates)
        table.add_row(Text(name, "bold"), *row, str(summary["unknown"]), *ems)
        for part in ("taught", "untaught"):
            if summary[part]:
                table.add_row(Text(f"  {part}"), *_cells(summary[part], rates))
    return table


def _is_told(rate: str, found: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(entry["fidelity"][rate] is not None for entry in found.values())


def _cells(part: Mapping[str, Any], rates: Sequence[str]) -> list[str]:
    return [str(part["n"]), *(_figure(part[rate]) for rate in rates)]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
