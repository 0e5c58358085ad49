"""Simulated training in a table over seeds: fidelity, worth, and the real calls that it saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from fieldcraft.config.plan import get_seed_table_rows
from fieldcraft.config.recipe import Recipe, get_stage_ancestry
from fieldcraft.evaluation.fidelity import RECALL_BANDS, RECALL_TITLES
from fieldcraft.records.metrics import METRICS
from fieldcraft.terminal.figure_table import FigureTable
from fieldcraft.types import DEFAULT_VERDICT_REWARD, Trajectory

Report = Mapping[str, Any]
MetricsRows = Sequence[Mapping[str, Any]]
Curves = Mapping[str, Sequence[MetricsRows]]  # stage -> metric rows of every seed
ReadEvaluation = Callable[[int, str], Sequence[Trajectory]]
LearningPoint = tuple[float, float]  # real calls so far, exact match
PERIODIC_EM_KEY = METRICS[DEFAULT_VERDICT_REWARD].heldout
FIDELITY_PARTS = {"": "all", **{f"{name}/": name for name in RECALL_BANDS}}
SIMULATED_LEGEND = {
    "steps": "of reinforcement learning, simulated + real",
    "searches": "judged simulated calls, of all seeds",
    "hold the\nfact": "share that contains the facts that the step needs",
    "EM\ngained": "exact match after all steps, minus that before the simulated ones",
}
SAVED_LEGEND = {
    "EM": "of the first row, in its last evaluation during training",
    "real\ncalls": "of its training, mean over the seeds compared",
    "rival's\ncalls": "real calls of the second row until it first had this exact match",
    "saved": "difference of the two",
    "seeds": "in which the second row reached it, of all",
}


def summarise_simulated_rows(
    recipe: Recipe, rows: Sequence[Report], curves: Curves
) -> list[dict[str, Any]]:
    """Return the rows of a table over seeds whose models had simulated searches in training.

    `fidelity` has, for all judged calls and for each of RECALL_BANDS, their number `n` and the
    share `supports_answer` that contains the needed facts, pooled over steps and seeds. `em_gained`
    is relative to the row `start`, the model before the simulated steps; both are None if the table
    lacks it. It includes what the `real_steps` after them gained, and is None if nothing was
    gradable.
    """
    titles = {row["name"]: row for row in rows}
    found = []
    for row in rows:
        simulated = [stage for stage in row["stages"] if _is_simulated(recipe, stage)]
        if not simulated:
            continue
        start = titles.get(_get_previous_stage(row["stages"], simulated[0]))
        steps = [step for stage in simulated for seed in curves.get(stage, ()) for step in seed]
        found.append(
            {
                "title": row["title"],
                "start": start and start["title"],
                "steps": row["rl_steps"]["simulated"],
                "real_steps": row["rl_steps"]["real"],
                "fidelity": pool_fidelity(steps),
                "em_gained": _compute_gain(row, start),
            }
        )
    return found


def _compute_gain(row: Report, start: Report | None) -> float | None:
    if start is None or None in (before := start["em"]["mean"], after := row["em"]["mean"]):
        return None
    return float(after - before)


def pool_fidelity(steps: MetricsRows) -> dict[str, dict[str, float]]:
    """Return `n` and `supports_answer` of all judged calls of several steps, and of each of
    RECALL_BANDS that occurs. Steps whose rate is undefined are left out."""
    pooled = {}
    for prefix, name in FIDELITY_PARTS.items():
        keys = f"fidelity/{prefix}n", f"fidelity/{prefix}supports_answer"
        judged = [
            tuple(step[key] for key in keys) for step in steps if step.get(keys[1]) is not None
        ]
        if total := sum(n for n, _ in judged):
            rate = sum(n * rate for n, rate in judged) / total
            pooled[name] = {"n": total, "supports_answer": rate}
    return pooled


def measure_saved_calls(
    recipe: Recipe, read_evaluation: ReadEvaluation, curves: Curves
) -> list[dict[str, Any]]:
    """Return how many real calls simulated training saved at equal exact match, for each comparison
    of the recipe between a row with real steps only and one with simulated and real steps.

    Both are read from the evaluations during training, and their start from the same questions.
    `rival_calls` counts until the rival first has the exact match that the other row has at its
    end; seeds in which it never does are left out of all means. `reached` is the number of the
    others.
    """
    titles = get_seed_table_rows(recipe)
    found = []
    for title, pair in recipe.comparisons.items():
        rival, model = sorted(pair, key=lambda name: _count_simulated(recipe, titles[name]))
        if not _is_rivalry(recipe, titles[rival], titles[model]):
            continue
        seeds = [
            _compare_curves(
                *(
                    trace_learning(recipe, titles[name], index, read_evaluation, curves)
                    for name in (model, rival)
                )
            )
            for index in range(len(recipe.seeds))
        ]
        found.append({"title": title, "model": model, "rival": rival, **_average_seeds(seeds)})
    return found


def _average_seeds(seeds: Sequence[tuple[float, float, float] | None]) -> dict[str, float | None]:
    """Return the means of the results of `_compare_curves`, without seeds that have none."""
    reached = [seed for seed in seeds if seed is not None]
    means = {
        key: fmean(seed[index] for seed in reached) if reached else None
        for index, key in enumerate(("em", "calls", "rival_calls"))
    }
    return {"reached": len(reached), **means}


def trace_learning(
    recipe: Recipe, name: str, seed_index: int, read_evaluation: ReadEvaluation, curves: Curves
) -> list[LearningPoint]:
    """Return (executed real calls so far, exact match) of a row: of the model before reinforcement
    learning, if it was evaluated, and of each evaluation during it. Simulated calls do not
    count."""
    stages = get_stage_ancestry(recipe, name)
    points = [*_evaluate_start(recipe, stages, recipe.seeds[seed_index], read_evaluation)]
    calls = 0.0
    for stage in stages:
        if recipe.stages[stage].kind != "rl":
            continue
        for step in curves[stage][seed_index]:
            if not _is_simulated(recipe, stage):
                calls += step["rollouts"] * step["calls_mean"]
            if (em := step.get(PERIODIC_EM_KEY)) is not None:
                points.append((calls, em))
    return points


def _evaluate_start(
    recipe: Recipe, stages: Sequence[str], seed: int, read_evaluation: ReadEvaluation
) -> Iterator[LearningPoint]:
    """Yield the exact match before the first stage of reinforcement learning, on the questions of
    the evaluations during training."""
    settings = recipe.evaluation
    start = next(
        (before for before, stage in pairwise(stages) if recipe.stages[stage].kind == "rl"),
        None,
    )
    if start is None or settings.periodic is None or not recipe.stages[start].evaluate:
        return
    trajectories = [
        trajectory
        for trajectory in read_evaluation(seed, start)
        if trajectory.task.meta.get("split") == settings.leading_split
    ]
    questions = list(dict.fromkeys(t.task.id for t in trajectories))[: settings.periodic.questions]
    graded = [t.is_correct for t in trajectories if t.task.id in questions]
    if known := [verdict for verdict in graded if verdict is not None]:
        yield 0.0, fmean(known)


def _compare_curves(
    model: Sequence[LearningPoint], rival: Sequence[LearningPoint]
) -> tuple[float, float, float] | None:
    """Return the last exact match of a model, its real calls, and those of the rival until it first
    has this exact match; None if it never has."""
    if not model:
        return None
    calls, em = model[-1]
    reached = next((spent for spent, reached_em in rival if reached_em >= em), None)
    return None if reached is None else (em, calls, reached)


def _is_rivalry(recipe: Recipe, rival: str, model: str) -> bool:
    """Return whether both rows have real steps, and only the model has simulated ones, too."""
    if _count_simulated(recipe, rival) or not _count_simulated(recipe, model):
        return False
    return all(
        _count_steps(recipe, name, "real") and recipe.evaluation.periodic for name in (rival, model)
    )


def _is_simulated(recipe: Recipe, stage: str) -> bool:
    return "simulated" in recipe.stages[stage].steps_by_observation_mode


def _count_simulated(recipe: Recipe, name: str) -> int:
    return _count_steps(recipe, name, "simulated")


def _count_steps(recipe: Recipe, name: str, mode: str) -> int:
    """Return the steps of a kind of observations in the lineage of an evaluated stage; 0 for
    workflows and teachers."""
    if name not in recipe.stages:
        return 0
    stages = (recipe.stages[stage] for stage in get_stage_ancestry(recipe, name))
    return sum(stage.steps_by_observation_mode.get(mode, 0) for stage in stages)


def _get_previous_stage(stages: Sequence[str], stage: str) -> str | None:
    index = stages.index(stage)
    return stages[index - 1] if index else None


# -- tables --------------------------------------------------------------------------------------


def build_simulated_table(entries: Sequence[Report]) -> FigureTable:
    """Return a table with the result of `summarise_simulated_rows`: a line for all simulated
    searches of a row, and one for each of RECALL_BANDS."""
    table = FigureTable([*SIMULATED_LEGEND], legend=SIMULATED_LEGEND)
    for entry in entries:
        parts = dict(entry["fidelity"])
        judged = parts.pop("all", None)
        gained = "" if entry["em_gained"] is None else f"{entry['em_gained']:+.3f}"
        steps = f"{entry['steps']} + {entry['real_steps']}"
        table.add_row(entry["title"], steps, *_make_cells(judged), gained)
        for name, part in parts.items():
            table.add_row(f"  {RECALL_TITLES[name]}", "", *_make_cells(part), "")
    return table


def _make_cells(part: Mapping[str, float] | None) -> tuple[str, str]:
    return ("0", "") if part is None else (f"{part['n']:,}", f"{part['supports_answer']:.3f}")


def build_saved_calls_table(entries: Sequence[Report]) -> FigureTable:
    """Return a table with the result of `measure_saved_calls`."""
    table = FigureTable([*SAVED_LEGEND], legend=SAVED_LEGEND)
    for entry in entries:
        cells = ["", "", "", ""]
        if entry["reached"]:
            calls, rival_calls = entry["calls"], entry["rival_calls"]
            cells = [f"{entry['em']:.3f}", f"{calls:,.0f}", f"{rival_calls:,.0f}"]
            cells.append(f"{rival_calls - calls:,.0f}")
        table.add_row(f"{entry['model']} ← {entry['rival']}", *cells, f"{entry['reached']}")
    return table
