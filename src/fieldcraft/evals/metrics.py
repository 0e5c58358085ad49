"""Metrics of a set of evaluation trajectories, about the model that wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from fieldcraft.dialects.naming import offered_with
from fieldcraft.evals.broken import broken_figures
from fieldcraft.evals.intervals import effective_size, wilson_interval
from fieldcraft.evals.samples import pass_rates
from fieldcraft.evals.spending import Prices, spending
from fieldcraft.evals.verifiers import PICKED
from fieldcraft.records.costs import policy_tokens
from fieldcraft.records.tool_use import call_counts, mean, optimal_calls, tool_use
from fieldcraft.rewards.programs import program_figures
from fieldcraft.types import Author, Status, Task, Trajectory, UserError


def summarise(
    trajectories: Sequence[Trajectory], split: str | None = None, prices: Prices | None = None
) -> dict[str, Any]:
    """Return the entry of one stage or workflow in `report.json`.

    `rewards["em"]` (0, 1, or None where the answer cannot be graded) and `rewards["f1"]` must have
    been filled in, unweighted; "cover_em" and "judge" are None without those rewards. Rates are
    fractions of all trajectories; `em` and its like are means over the gradable ones, and
    "n_effective" says how many independent questions the interval of `em` counts. If the tasks
    carry several values of `meta["split"]`, the entry also has "splits", and its top-level numbers
    are those of the leading `split` where there is one, else of all; `known` and `offloading_rate`
    look at all questions in either case. If they carry several values of `meta["data_source"]`, the
    entry and those of the splits have "sources". Where questions were sampled several times, "n"
    counts samples and "sampled" has what `pass_rates` returns, and "best_of", the mean and the
    interval of the samples that a verifier picked. Where some questions have more samples than
    others, the entry is of the first ones of each (`even`), but those of "splits" and "sources" are
    of all that their questions have. `prices` are those of `spending`.

    Raises UserError when there is nothing to summarise.
    """
    if not trajectories:
        raise UserError("There are no trajectories to summarise; give at least one task.")
    by_split = _by_split(trajectories)
    if len(by_split) < 2:
        return _summary(trajectories, prices)
    return _summary(by_split.get(split, trajectories), prices) | {
        "known": _knowledge(even(trajectories), known=True),
        "offloading_rate": tool_use(even(trajectories))["offloading_rate"],
        "split": split if split in by_split else "all",
        "splits": {name: _summary(part, prices) for name, part in by_split.items()},
    }


def leading(trajectories: Sequence[Trajectory], split: str | None) -> Sequence[Trajectory]:
    """Return the trajectories that a summary's top-level numbers are of."""
    return even(_by_split(trajectories).get(split, trajectories))


def even(trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
    """Return the first samples of every question, as many as all questions have: one with more
    samples does not count more."""
    questions: dict[tuple[Any, str], list[Trajectory]] = {}
    for trajectory in trajectories:
        key = (trajectory.task.meta.get("split"), trajectory.task.id)
        questions.setdefault(key, []).append(trajectory)
    fewest = min(map(len, questions.values()), default=0)
    if fewest * len(questions) == len(trajectories):
        return trajectories
    return [sample for samples in questions.values() for sample in samples[:fewest]]


def cluster_of(task: Task) -> str:
    """Return the label of the questions that are right or wrong together with this one, such as
    those about the same entity: `meta["cluster"]`, or this question alone."""
    label = task.meta.get("cluster")
    return task.id if label is None else str(label)


def _level(task: Task) -> str | None:
    """Return the difficulty that a question is said to have, as in GAIA, WebWalkerQA and
    HotpotQA."""
    level = task.meta.get("level")
    return None if level is None else str(level)


def _effective_questions(gradable: Iterable[Trajectory]) -> float:
    """Return the number of independent questions that the gradable ones are worth. Several samples
    of a question count as one, with their mean."""
    verdicts, clusters = _samples(gradable)
    return effective_size([fmean(drawn) for drawn in verdicts], clusters)


def _samples(gradable: Iterable[Trajectory]) -> tuple[list[list[bool]], list[str]]:
    """Return for each question whether its samples are right, and its cluster."""
    questions = _grouped(gradable, lambda t: t.task.id)
    return (
        [[t.right is True for t in samples] for samples in questions.values()],
        [cluster_of(samples[0].task) for samples in questions.values()],
    )


def _by_split(trajectories: Iterable[Trajectory]) -> dict[Any, list[Trajectory]]:
    return _grouped(trajectories, lambda t: t.task.meta.get("split"))


def _summary(trajectories: Sequence[Trajectory], prices: Prices | None) -> dict[str, Any]:
    found = _figures(even(trajectories), prices)
    sources = _grouped(trajectories, lambda t: t.task.meta.get("data_source"))
    if len(sources) > 1:
        found["sources"] = {str(n): _figures(even(part), prices) for n, part in sources.items()}
    return found


def _figures(trajectories: Sequence[Trajectory], prices: Prices | None) -> dict[str, Any]:
    n = len(trajectories)
    gradable = [t for t in trajectories if t.right is not None]
    judged = [t.rewards["judge"] for t in trajectories if "judge" in t.rewards]
    em = share_right(trajectories)
    effective = _effective_questions(gradable)
    verdicts, clusters = _samples(gradable)
    repeated = any(len(drawn) > 1 for drawn in verdicts)
    return {
        "n": n,
        "ungradable": n - len(gradable),
        "em": em,
        "em_ci95": None if em is None else list(wilson_interval(em, effective)),
        "n_effective": effective,
        "f1": mean(t.rewards.get("f1") for t in trajectories),
        "cover_em": mean(t.rewards.get("cover_em") for t in trajectories),
        "judge": mean(judged),
        "judge_ungradable": judged.count(None),
        "correct": sum(t.right is True for t in trajectories),
        "calls": call_counts(trajectories),
        "offered": _offered(trajectories),
        **tool_use(trajectories),
        "answered_rate": _rate(trajectories, lambda t: t.status is Status.ANSWERED),
        **program_figures(trajectories),
        **broken_figures(trajectories),
        "forced_answer_rate": _rate(trajectories, lambda t: t.forced),
        "format_rate": _rate(trajectories, lambda t: t.well_formed),
        "tokens_mean": sum(map(policy_tokens, trajectories)) / n,
        "folds_mean": sum(len(t.folds) for t in trajectories) / n,
        "observation_tokens_mean": sum(map(_observation_tokens, trajectories)) / n,
        "seconds_mean": sum(t.seconds for t in trajectories) / n,
        "status": {s.value: [t.status for t in trajectories].count(s) / n for s in Status},
        "by_hops": _by(trajectories, lambda t: t.task.meta.get("hops")),
        "by_level": _by(trajectories, lambda t: _level(t.task)),
        "by_calls": _by(trajectories, lambda t: t.executed_calls),
        "known": _knowledge(trajectories, known=True),
        "unknown": _knowledge(trajectories, known=False),
        "sampled": pass_rates(verdicts, clusters) | _best_of(gradable) if repeated else None,
        **spending(trajectories, prices),
    }


def _best_of(gradable: Sequence[Trajectory]) -> dict[str, Any]:
    """Return the share of right samples among those that a verifier picked, with its interval; None
    where there was none."""
    picked = [t for t in gradable if t.rewards.get(PICKED) == 1]
    rate = share_right(picked)
    if rate is None:
        return {"best_of": None}
    interval = wilson_interval(rate, _effective_questions(picked))
    return {"best_of": {"mean": rate, "ci95": list(interval)}}


def share_right(trajectories: Iterable[Trajectory]) -> float | None:
    """Return the share of right answers among the gradable trajectories; None when there is
    none."""
    return mean(t.right for t in trajectories)


def _observation_tokens(trajectory: Trajectory) -> int:
    """Return the number of tokens that tools, or what simulates them, gave it to read."""
    observers = (Author.TOOL, Author.SIMULATOR)
    return sum(len(s.ids) for s in trajectory.segments if s.author in observers)


def _offered(trajectories: Sequence[Trajectory]) -> list[str] | None:
    """Return the tools that all of these questions are asked with; None where these are all tools,
    or not the same ones."""
    first, *others = (offered_with(t.task) for t in trajectories)
    return first if all(tools == first for tools in others) else None


def _rate(trajectories: Sequence[Trajectory], holds: Callable[[Trajectory], bool]) -> float:
    return sum(map(holds, trajectories)) / len(trajectories)


def _by(
    trajectories: Iterable[Trajectory], key: Callable[[Trajectory], int | str | None]
) -> dict[str, dict[str, Any]]:
    return {
        str(value): {
            "n": len(part),
            "em": share_right(part),
            "calls_mean": sum(t.executed_calls for t in part) / len(part),
            "calls_optimal_mean": optimal_calls(part),
        }
        for value, part in _grouped(trajectories, key).items()
    }


def _knowledge(trajectories: Iterable[Trajectory], *, known: bool) -> dict[str, Any] | None:
    """Return the figures of the questions of which `Task.is_known` says this; None without any."""
    part = [t for t in trajectories if t.task.is_known is known]
    if not part:
        return None
    return {
        "n": len(part),
        "em": share_right(part),
        "calls_mean": sum(t.executed_calls for t in part) / len(part),
        "no_call_rate": _rate(part, lambda t: t.executed_calls == 0),
    }


def _grouped(
    trajectories: Iterable[Trajectory], key: Callable[[Trajectory], Any]
) -> dict[Any, list[Trajectory]]:
    """Return the trajectories by `key` in ascending order; those without one are left out."""
    groups: dict[Any, list[Trajectory]] = {}
    for trajectory in trajectories:
        if (value := key(trajectory)) is not None:
            groups.setdefault(value, []).append(trajectory)
    return dict(sorted(groups.items()))
