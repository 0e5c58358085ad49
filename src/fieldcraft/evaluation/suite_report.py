"""Results of a suite of benchmarks: their average, tables, and comparisons of two results.

A result is the content of `suite.json`:

    suite        name
    versions     of fieldcraft, torch and transformers
    benchmarks   name -> title, source, version, fingerprint of the questions, rule, sampling, ...
    models       label -> {"benchmarks": name -> entry, "average": {"mean", "ci95"} or None}

An entry has "em", the share of correct answers, and the other keys of
`summary.summarise_evaluation`, and "answers": id of a question -> {"cluster", "verdicts"}, where a
verdict is 1, 0, or None for an answer that cannot be graded. So two results can be compared without
the trajectories.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import gcd, sqrt
from statistics import fmean
from typing import Any

from fieldcraft.evaluation.comparison import sign_flip_test
from fieldcraft.evaluation.intervals import effective_sample_size, paired_difference_interval
from fieldcraft.evaluation.summary import get_cluster
from fieldcraft.terminal.figure_table import FigureTable
from fieldcraft.types import Trajectory

Entry = Mapping[str, Any]
RESULT_FILE = "suite.json"
# Keys of a benchmark that must be equal for its accuracies to be comparable.
COMPARED_KEYS = {"fingerprint": "questions", "rule": "grading rule", "sampling": "sampling"}


def collect_answers(trajectories: Iterable[Trajectory]) -> dict[str, dict[str, Any]]:
    """Return the verdicts on the samples of each question, by its id."""
    answers: dict[str, dict[str, Any]] = {}
    for trajectory in trajectories:
        task, correct = trajectory.task, trajectory.is_correct
        entry = answers.setdefault(task.id, {"cluster": get_cluster(task), "verdicts": []})
        entry["verdicts"].append(None if correct is None else int(correct))
    return answers


def compute_average(entries: Sequence[Entry]) -> dict[str, Any] | None:
    """Return the mean accuracy of several benchmarks, each with the same weight, and its 95 %
    interval; None if the answers of one cannot be graded.

    The interval combines those of the independent benchmarks, by the distances of their limits from
    the estimates (Zou and Donner 2008, "Construction of confidence limits about effect measures").
    """
    if not entries or any(entry["em"] is None for entry in entries):
        return None
    mean, n = fmean(entry["em"] for entry in entries), len(entries)
    down = sqrt(sum((entry["em"] - entry["em_ci95"][0]) ** 2 for entry in entries)) / n
    up = sqrt(sum((entry["em_ci95"][1] - entry["em"]) ** 2 for entry in entries)) / n
    return {"mean": mean, "ci95": [mean - down, mean + up]}


# -- tables ------------------------------------------------------------------------------------


def build_suite_table(result: Entry) -> FigureTable:
    """Return the table of accuracies: a row for each model, a column for each benchmark, and their
    average."""
    benchmarks = result["benchmarks"]
    headers = [_make_header(benchmark) for benchmark in benchmarks.values()]
    caption = (
        "Share of correct answers, and its 95 % interval. Average: every benchmark has the same"
        " weight."
    )
    table = FigureTable([*headers, "Average\n"] if len(headers) > 1 else headers, caption)
    for label, model in result["models"].items():
        entries = [model["benchmarks"].get(name) for name in benchmarks]
        cells = [_format_share(e and e["em"], e and e["em_ci95"]) for e in entries]
        if len(headers) > 1:
            mean = model["average"] or {"mean": None, "ci95": None}
            cells.append(_format_share(mean["mean"], mean["ci95"]))
        table.add_row(label, *cells)
        judged = [e and e["judge"] for e in entries]
        if any(share is not None for share in judged):
            filling = [""] if len(headers) > 1 else []
            table.add_row(f"{label}, judge", *(_format_share(j, None) for j in judged), *filling)
    return table


def _make_header(benchmark: Entry) -> str:
    samples = benchmark["sampling"]["samples"]
    return f"{benchmark['title']}\n{'pass@1' if samples == 1 else f'avg@{samples}'}"


def _format_share(share: float | None, interval: Sequence[float] | None) -> str:
    if share is None:
        return ""
    return f"{share:.3f}" + ("" if interval is None else "\n[{:.2f}, {:.2f}]".format(*interval))


def _describe_temperature(sampling: Mapping[str, Any]) -> str:
    """Return the temperature, or whose it is if every model has its own: model or recipe."""
    return f"{sampling['temperature']:g}" if "temperature" in sampling else sampling["sampling"]


def build_benchmarks_table(result: Entry) -> FigureTable:
    """Return a table of the questions and the settings behind the accuracies."""
    caption = (
        "version: commit of the data set on the hub, or SHA-256 hash of the file; calls: per"
        " question; ungradable: answers that are not counted."
    )
    headers = ["questions", "temperature", "graded by", "version", "un-\ngradable", "calls"]
    table = FigureTable(headers, caption)
    for name, benchmark in result["benchmarks"].items():
        entries = [
            m["benchmarks"][name] for m in result["models"].values() if name in m["benchmarks"]
        ]
        ungradable = sum(entry["ungradable"] for entry in entries)
        calls = " ".join(f"{entry['calls_mean']:.2f}" for entry in entries)
        table.add_row(
            name,
            str(benchmark["n"]),
            _describe_temperature(benchmark["sampling"]),
            benchmark["rule"],
            benchmark["version"].removeprefix("sha256:")[:10],
            str(ungradable) if ungradable else "",
            calls,
        )
    return table


# -- comparisons -------------------------------------------------------------------------------


def compare_results(results: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """Compare every model of every result with the first one, benchmark by benchmark.

    A comparison has "baseline", "model", "benchmark", and "different", the names of the settings
    that differ; with the same questions also the keys of `compare_answers`.
    """
    models = [
        (label if len(results) == 1 else f"{name}: {label}", result, model["benchmarks"])
        for name, result in results.items()
        for label, model in result["models"].items()
    ]
    (baseline, first_result, first), *others = models
    found = []
    for label, result, entries in others:
        for name in (name for name in first if name in entries):
            settings = first_result["benchmarks"][name], result["benchmarks"][name]
            different = [
                title
                for key, title in COMPARED_KEYS.items()
                if settings[0][key] != settings[1][key]
            ]
            row = {"baseline": baseline, "model": label, "benchmark": name, "different": different}
            if first[name]["answers"].keys() == entries[name]["answers"].keys():
                row |= compare_answers(first[name]["answers"], entries[name]["answers"])
            found.append(row)
    return found


def compare_answers(baseline: Mapping[str, Entry], model: Mapping[str, Entry]) -> dict[str, Any]:
    """Compare the verdicts of two models on the same questions, which may be sampled several times.

    A question whose samples cannot all be graded on both sides is left out. The difference of a
    question is that of its shares of correct samples. Returns "n", the "baseline_em" and
    "model_em" of these questions, their "difference", its interval "ci95"
    (`paired_difference_interval`), and "p_value" (`sign_flip_test` on clusters); without gradable
    questions, all but "n" are None.
    """
    pairs = [
        (entry["cluster"], entry["verdicts"], model[key]["verdicts"])
        for key, entry in baseline.items()
        if None not in [*entry["verdicts"], *model[key]["verdicts"]]
    ]
    if not pairs:
        keys = ("baseline_em", "model_em", "difference", "ci95", "p_value")
        return {"n": 0} | dict.fromkeys(keys)
    changes = [fmean(after) - fmean(before) for _, before, after in pairs]
    effective = effective_sample_size(changes, [cluster for cluster, _, _ in pairs])
    gained, lost = (sum(max(sign * c, 0) for c in changes) / len(pairs) for sign in (1, -1))
    return {
        "n": len(pairs),
        "baseline_em": fmean(fmean(before) for _, before, _ in pairs),
        "model_em": fmean(fmean(after) for _, _, after in pairs),
        "difference": gained - lost,
        "ci95": list(paired_difference_interval(gained, lost, effective)),
        "p_value": sign_flip_test(_sum_clusters(pairs)),
    }


def _sum_clusters(pairs: Sequence[tuple[str, Sequence[int], Sequence[int]]]) -> list[int]:
    """Return the change of each cluster as a whole number, in the largest unit that allows it."""
    sums: dict[str, int] = defaultdict(int)
    for cluster, before, after in pairs:
        sums[cluster] += sum(after) * len(before) - sum(before) * len(after)
    unit = gcd(*sums.values()) or 1
    return [total // unit for total in sums.values()]


def build_comparison_table(comparisons: Sequence[Entry]) -> FigureTable:
    """Return a table with a row for each model and benchmark."""
    caption = "Positive differences: the second model is better."
    legend = {
        "p": "McNemar's exact test, in which questions of one cluster change sides together",
        "differs in": "settings that are not the same, so that the accuracies are not comparable",
    }
    headers = ["n", "first", "second", "difference\n[95 %]", "p", "differs in"]
    table = FigureTable(headers, caption, legend)
    for row in comparisons:
        name = f"{row['benchmark']}: {row['baseline']} → {row['model']}"
        if row.get("n"):
            low, high = row["ci95"]
            figures = [
                str(row["n"]),
                f"{row['baseline_em']:.3f}",
                f"{row['model_em']:.3f}",
                f"{row['difference']:+.3f}\n[{low:+.2f}, {high:+.2f}]",
                f"{row['p_value']:.3f}",
            ]
        else:
            figures = ["0" if "n" in row else "", "", "", "", ""]
        table.add_row(name, *figures, ", ".join(row["different"]))
    return table
