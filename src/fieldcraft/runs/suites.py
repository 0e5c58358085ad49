"""Evaluation of agents on a suite of benchmarks.

With an output folder, the result of each model on each benchmark is written as soon as it is
complete, and reused by the same command.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from fieldcraft.config.components import AUTO_VERDICT
from fieldcraft.config.recipe import dump_recipe
from fieldcraft.config.sections import JudgeConfig
from fieldcraft.evaluation.benchmarks import Suite
from fieldcraft.evaluation.suite_report import RESULT_FILE, collect_answers, compute_average
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.records.events import EventHandler, LogMessage, ignore_event
from fieldcraft.records.files import make_folder, write_json
from fieldcraft.records.reading import read_json
from fieldcraft.records.trajectories import write_trajectories
from fieldcraft.rewards.judge import JudgeReward
from fieldcraft.runs.agent import Agent
from fieldcraft.runs.benchmark_data import (
    BenchmarkData,
    describe_environment,
    describe_rule,
    read_benchmark,
)
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.suite_agents import SuiteAgent
from fieldcraft.types import Task, UserError
from fieldcraft.version import __version__

_READ_ADVICE = "remove it, and run the same command again"
Entry = dict[str, Any]


@dataclass(frozen=True)
class SuiteEvaluation:
    """A suite with its questions, ready to be asked.

    `sampling` has the user's sampling keys, which replace those of the suite; `out` is the folder
    of the results, None to keep none.
    """

    name: str
    suite: Suite
    data: Mapping[str, BenchmarkData]
    rules: Mapping[str, str]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    judge: JudgeReward | None = None
    judge_settings: JudgeConfig | None = None
    out: Path | None = None

    def run(self, agents: Mapping[str, Agent], emit: EventHandler) -> Entry:
        """Ask every agent all questions, and return the result, which is also written after each
        benchmark. Raises UserError for invalid sampling keys, and for an agent that cannot be
        evaluated."""
        graded = {
            label: SuiteAgent(agent.with_settings(verdict_reward=AUTO_VERDICT))
            for label, agent in agents.items()
        }
        for agent in graded.values():  # before any model is loaded
            for name in self.data:
                self._prepare(agent, name).resolve_decoding(ignore_event)
        entries: dict[str, dict[str, Entry]] = {label: {} for label in graded}
        for label, agent in graded.items():
            for name in self.data:
                entries[label][name] = self._evaluate(label, agent, name, emit)
                if self.out is not None:
                    write_json(self.out / RESULT_FILE, self._build_result(entries))
        return self._build_result(entries)

    def get_sampling(self, name: str) -> dict[str, Any]:
        """Return the sampling keys of a benchmark: those of the user over those of the suite."""
        keys = self.suite.get_sampling(name)
        if "sampling" in self.sampling:  # of the model, or of its run, instead of the suite's
            keys = {"samples": keys["samples"]}
        keys |= self.sampling
        if not keys.get("temperature", 1) and "top_p" not in self.sampling:
            keys.pop("top_p", None)  # has no effect on greedy sampling
        return {key: value for key, value in keys.items() if value is not None}

    def _prepare(self, agent: SuiteAgent, name: str) -> Agent:
        """Return the agent in the environment of a benchmark, with its sampling for all of its
        questions."""
        samples = {"*": self.get_sampling(name)["samples"]}
        found = agent.find_variant(self.suite.benchmarks[name])
        return found.with_sampling(**{**self.get_sampling(name), "samples": samples})

    def _evaluate(self, label: str, agent: SuiteAgent, name: str, emit: EventHandler) -> Entry:
        """Return the entry of a model and a benchmark, which may be that of an earlier command."""
        file, key = self._entry_file(label, name), self._describe_conditions(agent, name)
        if file is not None and file.exists():
            stored: Entry = read_json(file, dict[str, Any], _READ_ADVICE)
            if stored.get("conditions") == key:
                emit(LogMessage(f"{label}, {name}: from {file}"))
                return stored
        agent.load_parts(self.suite.benchmarks[name])
        started, title = time.perf_counter(), f"{label}, {name}"
        prepared, tasks = self._prepare(agent, name), self.data[name].tasks
        trajectories = run_async(prepared.run_evaluation(tasks, self.judge, title, emit))
        entry = summarise_evaluation(trajectories) | {
            "seconds": time.perf_counter() - started,
            "answers": collect_answers(trajectories),
            "conditions": key,
        }
        if file is not None:
            make_folder(file.parent)
            write_trajectories(file.with_suffix(".jsonl"), trajectories)
            write_json(file, entry)
        return entry

    def _entry_file(self, label: str, name: str) -> Path | None:
        if self.out is None:
            return None
        unique = hashlib.sha256(label.encode()).hexdigest()[:6]
        readable = re.sub(r"[^\w.-]+", "-", label).strip("-.")[-60:]
        return self.out / f"{readable}-{unique}" / f"{name}.json"

    def _describe_conditions(self, agent: SuiteAgent, name: str) -> Entry:
        """Return everything that determines the answers of a model and their grades, as JSON."""
        conditions = {
            "weights": list(_list_weight_files(agent.agent.model)),
            "recipe": dump_recipe(self._prepare(agent, name).recipe),
            "index": agent.agent.index and str(agent.agent.index),
            "questions": self.data[name].fingerprint,
            "metadata": _hash_metadata(self.data[name].tasks),
            "rule": self.rules[name],
            "judge": self.judge_settings and self.judge_settings.model_dump(),
        }
        found: Entry = json.loads(json.dumps(conditions, default=str))
        return found

    def _build_result(self, entries: Mapping[str, Mapping[str, Entry]]) -> Entry:
        models = {
            label: {
                "benchmarks": {
                    name: {key: entry[key] for key in entry.keys() - {"conditions"}}
                    for name, entry in found.items()
                },
                "average": compute_average([*found.values()])
                if found.keys() == self.data.keys()
                else None,
            }
            for label, found in entries.items()
        }
        return {
            "suite": self.name,
            "title": self.suite.title,
            "source": self.suite.source,
            "versions": {
                "fieldcraft": __version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            "judge": self.judge_settings and self.judge_settings.model_dump(),
            "benchmarks": {name: self._describe_benchmark(name) for name in self.data},
            "models": models,
        }

    def _describe_benchmark(self, name: str) -> Entry:
        data, benchmark = self.data[name], self.suite.benchmarks[name]
        return {
            "title": benchmark.title,
            "source": data.file.source,
            "version": data.file.version,
            "fingerprint": data.fingerprint,
            "n": len(data.tasks),
            "left_out": dict(data.rejected),
            "rule": self.rules[name],
            "sampling": self.get_sampling(name),
            "licence": benchmark.licence,
            "note": benchmark.note,
        }


def _hash_metadata(tasks: Sequence[Task]) -> str:
    """Return a hash of the metadata of questions, such as the tests of programs."""
    text = json.dumps([task.meta for task in tasks], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _list_weight_files(model: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and time of the files of a model, which change when it is trained again."""
    for path in sorted(model.iterdir() if model.is_dir() else [model]):
        if path.is_file():
            status = path.stat()
            yield path.name, status.st_size, status.st_mtime_ns


def read_suite(
    suite: Suite, folder: Path | None, limit: int | None
) -> tuple[dict[str, BenchmarkData], list[UserError]]:
    """Return the questions of every benchmark, and an error for each that has none. `limit` is a
    maximum number of questions of each, in addition to that of the suite."""
    limits = [count for count in (limit, suite.questions) if count is not None]
    data: dict[str, BenchmarkData] = {}
    errors: list[UserError] = []
    for name, benchmark in suite.benchmarks.items():
        try:
            data[name] = read_benchmark(name, benchmark, folder, min(limits, default=None))
        except UserError as error:
            errors.append(error)
    return data, errors


def find_rules(suite: Suite, judge_model: str | None) -> tuple[dict[str, str], list[str]]:
    """Return the grading rule of every benchmark, and a sentence for each without one."""
    rules: dict[str, str] = {}
    errors: list[str] = []
    for name, benchmark in suite.benchmarks.items():
        environment = benchmark.environment
        try:
            rules[name] = (
                describe_rule(benchmark.graded_by, judge_model)
                if environment is None
                else describe_environment(environment)
            )
        except UserError as error:
            subject = f"the benchmark '{name}' cannot be graded: " if environment is None else ""
            errors.append(f"{subject}{error}")
    return rules, errors
