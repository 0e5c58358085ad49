"""Metrics of a set of evaluation trajectories of one model, and the costs of its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from fieldcraft.config.components import RUBRIC
from fieldcraft.config.names import import_object
from fieldcraft.dialects.tool_names import get_offered_names
from fieldcraft.environments.monitors import find_defect
from fieldcraft.evaluation.intervals import effective_sample_size, wilson_interval
from fieldcraft.evaluation.samples import compute_pass_rates
from fieldcraft.evaluation.verifiers import PICKED_REWARD
from fieldcraft.records.costs import count_policy_tokens
from fieldcraft.records.metrics import METRICS
from fieldcraft.records.tool_metrics import (
    compute_mean_optimal_calls,
    compute_tool_metrics,
    count_calls,
    mean_or_none,
)
from fieldcraft.rewards.criteria import compute_criteria_means
from fieldcraft.rewards.programs import compute_program_metrics
from fieldcraft.types import Author, Status, Task, Trajectory, UserError

COST_KEY = "spent"  # key of the metadata of a task that was not answered by a single policy
TokenPrices = tuple[float, float]  # per million input and output tokens


def summarise_evaluation(
    trajectories: Sequence[Trajectory], split: str | None = None, prices: TokenPrices | None = None
) -> dict[str, Any]:
    """Return the entry of one stage or workflow in `report.json`.

    `rewards["em"]` (0, 1, or None if the answer cannot be graded) and `rewards["f1"]` must be
    filled in, unweighted; "cover_em" and "judge" are None without those rewards. Rates are
    fractions of all trajectories. `em` and similar metrics are means over the gradable ones, and
    "n_effective" is the effective number of independent questions for the interval of `em`.

    If the tasks have several values of `meta["split"]`, the entry also has "splits", and its
    top-level numbers are computed on the leading `split` if there is one, else on all. `known` and
    `offloading_rate` always include all questions. If the tasks have several values of
    `meta["data_source"]`, the entry and its splits have "sources".

    If questions were sampled several times, "n" counts samples, "sampled" is the result of
    `compute_pass_rates`, and "best_of" has the mean and the interval of the samples selected by a
    verifier. If the numbers of samples differ, the entry uses the first ones of each question
    (`equalise_samples`), but "splits" and "sources" use all. `prices` are passed to
    `compute_cost_metrics`.

    Raises UserError if there are no trajectories.
    """
    if not trajectories:
        raise UserError("There are no trajectories to summarise; give at least one task.")
    by_split = _group_by_split(trajectories)
    if len(by_split) < 2:
        return _summarise_split(trajectories, prices)
    return _summarise_split(by_split.get(split, trajectories), prices) | {
        "known": _summarise_known(equalise_samples(trajectories), known=True),
        "offloading_rate": compute_tool_metrics(equalise_samples(trajectories))["offloading_rate"],
        "split": split if split in by_split else "all",
        "splits": {name: _summarise_split(part, prices) for name, part in by_split.items()},
    }


def select_leading_split(
    trajectories: Sequence[Trajectory], split: str | None
) -> Sequence[Trajectory]:
    """Return the trajectories used for a summary's top-level numbers."""
    return equalise_samples(_group_by_split(trajectories).get(split, trajectories))


def equalise_samples(trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
    """Return the first samples of every question, the same number for each, so that all questions
    have equal weight."""
    questions: dict[tuple[str | None, str], list[Trajectory]] = {}
    for trajectory in trajectories:
        key = (_get_label(trajectory.task, "split"), trajectory.task.id)
        questions.setdefault(key, []).append(trajectory)
    fewest = min(map(len, questions.values()), default=0)
    if fewest * len(questions) == len(trajectories):
        return trajectories
    return [sample for samples in questions.values() for sample in samples[:fewest]]


def get_cluster(task: Task) -> str:
    """Return the label of the questions that tend to be correct or wrong together with this one,
    such as questions about the same entity: `meta["cluster"]`, or a label for this question
    alone."""
    label = task.meta.get("cluster")
    return task.id if label is None else str(label)


def _get_label(task: Task, key: str) -> str | None:
    """Return a label in the metadata of a question; files may give a number or a list."""
    label = task.meta.get(key)
    return None if label is None else str(label)


def _count_effective_questions(gradable: Iterable[Trajectory]) -> float:
    """Return the effective number of independent gradable questions. Several samples of a question
    count as one, with their mean."""
    verdicts, clusters = _group_verdicts(gradable)
    return effective_sample_size([fmean(samples) for samples in verdicts], clusters)


def _group_verdicts(gradable: Iterable[Trajectory]) -> tuple[list[list[bool]], list[str]]:
    """Return the verdicts of each question's samples, and its cluster."""
    questions = _group(gradable, lambda t: t.task.id)
    return (
        [[t.is_correct is True for t in samples] for samples in questions.values()],
        [get_cluster(samples[0].task) for samples in questions.values()],
    )


def _group_by_split(trajectories: Iterable[Trajectory]) -> dict[Any, list[Trajectory]]:
    return _group(trajectories, lambda t: _get_label(t.task, "split"))


def _summarise_split(
    trajectories: Sequence[Trajectory], prices: TokenPrices | None
) -> dict[str, Any]:
    summary = _compute_metrics(equalise_samples(trajectories), prices)
    sources = _group(trajectories, lambda t: _get_label(t.task, "data_source"))
    if len(sources) > 1:
        summary["sources"] = {
            n: _compute_metrics(equalise_samples(part), prices) for n, part in sources.items()
        }
    return summary


def _compute_metrics(
    trajectories: Sequence[Trajectory], prices: TokenPrices | None
) -> dict[str, Any]:
    n = len(trajectories)
    gradable = [t for t in trajectories if t.is_correct is not None]
    judged = [t.rewards["judge"] for t in trajectories if "judge" in t.rewards]
    criteria = compute_criteria_means(trajectories)
    em = compute_accuracy(trajectories)
    effective = _count_effective_questions(gradable)
    verdicts, clusters = _group_verdicts(gradable)
    repeated = any(len(samples) > 1 for samples in verdicts)
    return {
        "n": n,
        "ungradable": n - len(gradable),
        "em": em,
        "em_ci95": None if em is None else list(wilson_interval(em, effective)),
        "n_effective": effective,
        "f1": mean_or_none(t.rewards.get("f1") for t in trajectories),
        "cover_em": mean_or_none(t.rewards.get("cover_em") for t in trajectories),
        "judge": mean_or_none(judged),
        "judge_ungradable": judged.count(None),
        **({"rubric": criteria.get(RUBRIC), "criteria": criteria} if criteria else {}),
        "correct": sum(t.is_correct is True for t in trajectories),
        "calls": count_calls(trajectories),
        "offered": _find_common_tools(trajectories),
        **compute_tool_metrics(trajectories),
        "answered_rate": _compute_rate(trajectories, lambda t: t.status is Status.ANSWERED),
        **compute_program_metrics(trajectories),
        **measure_broken_rollouts(trajectories),
        "forced_answer_rate": _compute_rate(trajectories, lambda t: t.forced),
        "format_rate": _compute_rate(trajectories, lambda t: t.well_formed),
        "tokens_mean": sum(map(count_policy_tokens, trajectories)) / n,
        "folds_mean": sum(len(t.folds) for t in trajectories) / n,
        "observation_tokens_mean": sum(map(_count_observation_tokens, trajectories)) / n,
        "seconds_mean": sum(t.seconds for t in trajectories) / n,
        "status": {s.value: [t.status for t in trajectories].count(s) / n for s in Status},
        "by_hops": _summarise_groups(trajectories, lambda t: _get_label(t.task, "hops")),
        "by_level": _summarise_groups(trajectories, lambda t: _get_label(t.task, "level")),
        "by_calls": _summarise_groups(trajectories, lambda t: str(t.num_executed_calls)),
        "known": _summarise_known(trajectories, known=True),
        "unknown": _summarise_known(trajectories, known=False),
        "sampled": compute_pass_rates(verdicts, clusters) | _summarise_picked(gradable)
        if repeated
        else None,
        **compute_cost_metrics(trajectories, prices),
        **{m.key: import_object(m.compute)(trajectories) for m in METRICS.values() if m.compute},
    }


def _summarise_picked(gradable: Sequence[Trajectory]) -> dict[str, Any]:
    """Return the share of correct samples among those selected by a verifier, with its interval;
    None if none was selected."""
    picked = [t for t in gradable if t.rewards.get(PICKED_REWARD) == 1]
    rate = compute_accuracy(picked)
    if rate is None:
        return {"best_of": None}
    interval = wilson_interval(rate, _count_effective_questions(picked))
    return {"best_of": {"mean": rate, "ci95": list(interval)}}


def measure_broken_rollouts(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Return `broken_rate`, the share of rollouts with a tool that raised or did not answer or with
    an engine failure, and `broken_cause`, the cause of the last one."""
    causes = [cause for t in trajectories if (cause := find_defect(t)) is not None]
    return {
        "broken_rate": len(causes) / max(len(trajectories), 1),
        "broken_cause": causes[-1] if causes else None,
    }


def compute_accuracy(trajectories: Iterable[Trajectory]) -> float | None:
    """Return the share of correct answers among the gradable trajectories; None if there are
    none."""
    return mean_or_none(t.is_correct for t in trajectories)


def _count_observation_tokens(trajectory: Trajectory) -> int:
    """Return the number of observation tokens from tools or their simulators."""
    observers = (Author.TOOL, Author.SIMULATOR)
    return sum(len(s.ids) for s in trajectory.segments if s.author in observers)


def _find_common_tools(trajectories: Sequence[Trajectory]) -> list[str] | None:
    """Return the tools that all given questions offer; None if they offer all tools, or different
    ones."""
    first, *others = (get_offered_names(t.task) for t in trajectories)
    return first if all(tools == first for tools in others) else None


def _compute_rate(
    trajectories: Sequence[Trajectory], predicate: Callable[[Trajectory], bool]
) -> float:
    return sum(map(predicate, trajectories)) / len(trajectories)


def _summarise_groups(
    trajectories: Iterable[Trajectory], key: Callable[[Trajectory], str | None]
) -> dict[str, dict[str, Any]]:
    """Return metrics of each group, those with a number as label first, in ascending order."""
    groups = _group(trajectories, key)
    return {
        label: {
            "n": len(part),
            "ungradable": sum(t.is_correct is None for t in part),
            "correct": sum(t.is_correct is True for t in part),
            "em": compute_accuracy(part),
            "calls_mean": sum(t.num_executed_calls for t in part) / len(part),
            "calls_optimal_mean": compute_mean_optimal_calls(part),
        }
        for label, part in sorted(groups.items(), key=lambda group: _get_order(group[0]))
    }


def _get_order(label: str) -> tuple[bool, int, str]:
    return not label.isdecimal(), len(label), label


def _summarise_known(trajectories: Iterable[Trajectory], *, known: bool) -> dict[str, Any] | None:
    """Return the metrics of the questions whose `Task.is_known` has the given value; None if there
    are none."""
    part = [t for t in trajectories if t.task.is_known is known]
    if not part:
        return None
    return {
        "n": len(part),
        "em": compute_accuracy(part),
        "calls_mean": sum(t.num_executed_calls for t in part) / len(part),
        "no_call_rate": _compute_rate(part, lambda t: t.num_executed_calls == 0),
    }


def _group(
    trajectories: Iterable[Trajectory], key: Callable[[Trajectory], str | None]
) -> dict[str, list[Trajectory]]:
    """Group trajectories by `key` in ascending order; those without a key are omitted."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if (value := key(trajectory)) is not None:
            groups.setdefault(value, []).append(trajectory)
    return dict(sorted(groups.items()))


# -- costs of an answer ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Requests with their input and output tokens; `cost` is None if a price is unknown.

    Tokens are counted as billed by an endpoint without a prompt cache: each request reads its whole
    prompt. `instructions` are those of the `read` tokens that are the same in each request to a
    member of a team.
    """

    requests: int
    read: int
    written: int
    cost: float | None = None
    instructions: int = 0

    def as_meta(self) -> dict[str, Any]:
        """Return the costs for the metadata of a task, where `compute_cost` looks them up."""
        return {COST_KEY: asdict(self)}


def compute_cost(trajectory: Trajectory, prices: TokenPrices | None = None) -> RequestCost:
    """Return the costs of a trajectory, computed with `prices` unless the task records them. A
    policy sends a request for each of its turns, which reads the chain so far."""
    if recorded := trajectory.task.meta.get(COST_KEY):
        found = RequestCost(**recorded)
    else:
        found = _count_policy_cost(trajectory)
    if prices is None or found.cost is not None:
        return found
    cost = (found.read * prices[0] + found.written * prices[1]) / 1e6
    return replace(found, cost=cost)


def _count_policy_cost(trajectory: Trajectory) -> RequestCost:
    requests = read = written = context_tokens = 0
    for index, segment in enumerate(trajectory.segments):
        context_tokens = 0 if index in trajectory.folds else context_tokens
        if segment.author is Author.POLICY and segment.ids:
            requests, read, written = (
                requests + 1,
                read + context_tokens,
                written + len(segment.ids),
            )
        context_tokens += len(segment.ids)
    return RequestCost(requests, read, written)


def compute_cost_metrics(
    trajectories: Sequence[Trajectory], prices: TokenPrices | None
) -> dict[str, Any]:
    """Return means per question, and sums per correct answer. The latter are None without a correct
    answer; costs are None if a price is unknown."""
    n, correct = len(trajectories), sum(t.is_correct is True for t in trajectories)
    costs = [compute_cost(t, prices) for t in trajectories]
    known = [item.cost for item in costs if item.cost is not None]
    cost = sum(known) if len(known) == n else None

    def per_success(total: float | None) -> float | None:
        return None if total is None or not correct else total / correct

    return {
        "requests_mean": sum(item.requests for item in costs) / n,
        "prompt_tokens_mean": sum(item.read for item in costs) / n,
        "completion_tokens_mean": sum(item.written for item in costs) / n,
        "member_prompt_tokens_mean": sum(item.instructions for item in costs) / n,
        "cost_mean": None if cost is None else cost / n,
        "tokens_per_success": per_success(sum(item.read + item.written for item in costs)),
        "calls_per_success": per_success(sum(t.num_executed_calls for t in trajectories)),
        "seconds_per_success": per_success(sum(t.seconds for t in trajectories)),
        "cost_per_success": per_success(cost),
    }
