"""Questions of a benchmark: found, read, checked, and identified by a version."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fieldcraft.config.choices import EnvironmentConfig
from fieldcraft.config.hub_names import identify_hub_dataset, parse_hub_dataset
from fieldcraft.data.gold_answers import ANSWER_KEYS, QUESTION_KEYS
from fieldcraft.data.records import Record, RecordError, read_records
from fieldcraft.data.tasks import ParsedTasks, parse_tasks, select_tasks
from fieldcraft.evaluation.benchmarks import (
    BY_TESTS,
    Benchmark,
    ColumnRole,
    require_data_folder,
)
from fieldcraft.hub.dataset_files import resolve_data_file
from fieldcraft.hub.repository_files import fetch_repository_file
from fieldcraft.records.files import dump_finite_json
from fieldcraft.records.meta import GRADED_BY_KEY
from fieldcraft.rewards.answers import RULES
from fieldcraft.rewards.grading import JUDGE, MATH, resolve_grader
from fieldcraft.rewards.judge import JUDGE_RULES
from fieldcraft.rewards.programs import TEST_REWARD_NAMES
from fieldcraft.runs.build import make_environment
from fieldcraft.types import Task, UserError

SPLIT_KEY = "split"  # of `meta`; a benchmark is one split


@dataclass(frozen=True)
class DataFile:
    """The file of a benchmark. `source` names it in a report: a hub name with its commit, or its
    path. `version` is the commit, or the file's SHA-256 hash. `columns` must exist: those of the
    published data, or of a user; other files may be in any format that is read."""

    path: Path
    source: str
    version: str
    columns: Mapping[ColumnRole, str]


@dataclass(frozen=True)
class BenchmarkData:
    """Questions of a benchmark, with their file and warnings about them."""

    tasks: Sequence[Task]
    file: DataFile
    rejected: Mapping[str, int]
    warnings: Sequence[str]

    @property
    def fingerprint(self) -> str:
        """Hash of the texts of the questions and their answers, in order."""
        texts = [[task.id, task.question, list(task.answers)] for task in self.tasks]
        return hashlib.sha256(dump_finite_json(self.file.path, texts).encode()).hexdigest()[:16]


def read_benchmark(
    name: str, benchmark: Benchmark, folder: Path | None, limit: int | None
) -> BenchmarkData:
    """Return the questions of a benchmark, at most `limit`.

    Its file is `benchmark.file`, or the one with its name in `folder`, or fetched from the hub.

    Questions of an environment are all of its tasks.

    Raises UserError if there is none, if the hub denies it, if it has other columns, for questions
    that its grading rule cannot grade, and for an environment that cannot be read.
    """
    if benchmark.environment is not None:
        return _read_environment(name, benchmark, benchmark.environment, limit)
    file = find_file(name, benchmark, folder)
    records = adapt_records(read_records(file.path), file.columns, file.source)
    read = parse_tasks(records, file.source, benchmark.max_left_out)
    tasks = [_adapt_task(name, benchmark, task) for task in select_tasks(read.tasks, limit)]
    return BenchmarkData(
        tasks, file, dict(read.rejected_counts), [*_list_warnings(benchmark, read, file)]
    )


def _read_environment(
    name: str, benchmark: Benchmark, config: EnvironmentConfig, limit: int | None
) -> BenchmarkData:
    environment = make_environment(config)
    train, heldout = environment.tasks(0)
    read = ParsedTasks([*train, *heldout], Counter())
    if not read.tasks:
        raise UserError(
            f"the environment '{config.name}' of the benchmark '{name}' has no tasks: use one that"
            " brings its own."
        )
    source = describe_environment(config)
    file = DataFile(Path(config.name), source, source.rpartition(" ")[2], {})
    tasks = [
        replace(task, meta=task.meta | {"data_source": name})
        for task in select_tasks(read.tasks, limit)
    ]
    return BenchmarkData(tasks, file, {}, [*_list_warnings(benchmark, read, file)])


def describe_environment(config: EnvironmentConfig) -> str:
    """Return the source of the questions and rewards of an environment: its attribute `source`,
    with a version, or its name. Raises UserError for an environment that cannot be made."""
    return str(getattr(make_environment(config), "source", f"environment {config.name}"))


def _list_warnings(benchmark: Benchmark, read: ParsedTasks, file: DataFile) -> Iterator[str]:
    yield from read.warnings(file.source)
    if benchmark.size is not None and benchmark.size != len(read.tasks):
        yield (
            f"{file.source} has {len(read.tasks)} questions, and {benchmark.title} was published"
            f" with {benchmark.size}"
        )


# -- files -------------------------------------------------------------------------------------


def find_file(name: str, benchmark: Benchmark, folder: Path | None) -> DataFile:
    """Return the file of a benchmark, which may be downloaded. Raises UserError if there is none,
    with the file to give instead."""
    if benchmark.file is not None:
        return _describe_file(benchmark.file, benchmark.columns)
    if folder is not None and (local := _find_in_folder(name, benchmark, folder)) is not None:
        return _describe_file(local, {})
    wanted = benchmark.published_file or f"{name}.jsonl"
    if benchmark.hub is None:
        raise UserError(
            f"the data of the benchmark '{name}' is not on the hub: put {wanted}"
            f"{f' ({benchmark.note})' if benchmark.note else ''} into a folder and give --data"
            " FOLDER."
        )
    try:
        return _fetch(benchmark)
    except UserError as error:
        raise UserError(
            f"the benchmark '{name}' has no data: {str(error).removesuffix('.')}; or put it as"
            f" {wanted} into a folder and give --data FOLDER."
        ) from error


def _find_in_folder(name: str, benchmark: Benchmark, folder: Path) -> Path | None:
    """Return the file or data set folder whose name, up to its first dot, is that of the benchmark,
    or which has the name of the published file."""
    require_data_folder(folder)
    found = [
        path
        for path in sorted(folder.iterdir())
        if path.name == benchmark.published_file or path.name.partition(".")[0].lower() == name
    ]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise UserError(f"{folder} has {names} for the benchmark '{name}': keep one of them.")
    return found[0] if found else None


def _fetch(benchmark: Benchmark) -> DataFile:
    dataset = parse_hub_dataset(str(benchmark.hub))
    assert dataset is not None  # checked by `Benchmark`
    if benchmark.hub_file is not None:
        fetched = fetch_repository_file(dataset, benchmark.hub_file)
        pinned = dataset._replace(revision=fetched.commit)
        source = f"{pinned}, {benchmark.hub_file}"
        return DataFile(fetched.path, source, fetched.commit, benchmark.columns)
    path = resolve_data_file(Path(str(dataset)))
    resolved = identify_hub_dataset(path)
    assert resolved is not None  # a file of the cache
    return DataFile(path, str(resolved), str(resolved.revision), benchmark.columns)


def _describe_file(path: Path, columns: Mapping[ColumnRole, str]) -> DataFile:
    """Return a user's file, or rows of the hub that a user names."""
    local = resolve_data_file(path)
    if (rows := identify_hub_dataset(local)) is not None:
        return DataFile(local, str(rows), str(rows.revision), columns)
    if not local.exists():
        raise UserError(f"{path} does not exist: correct the path of the benchmark's file.")
    files = sorted(p for p in local.rglob("*") if p.is_file()) if local.is_dir() else [local]
    hashes = list(map(_hash_file, files))
    if len(hashes) != 1:  # a folder; a file has the hash that other programs print
        hashes = [hashlib.sha256("".join(hashes).encode()).hexdigest()]
    return DataFile(local, str(path), f"sha256:{hashes[0]}", columns)


def _hash_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# -- records and questions ---------------------------------------------------------------------


def adapt_records(
    located: Iterator[tuple[str, Record | RecordError]],
    columns: Mapping[ColumnRole, str],
    source: str,
) -> Iterator[tuple[str, Record | RecordError]]:
    """Yield records with question and answer under usual keys. Raises UserError if the first
    record lacks a column."""
    first = True
    for location, record in located:
        if isinstance(record, RecordError):
            yield location, record
            continue
        if first:
            _require_columns(record, columns, source)
        first = False
        yield location, record | _rename(record, columns)


def _require_columns(record: Record, columns: Mapping[ColumnRole, str], source: str) -> None:
    for role, column in columns.items():
        if column not in record:
            raise UserError(
                f"{source} has no column '{column}' with the {role}, but"
                f" {', '.join(map(str, record))}: set columns of the benchmark in the file of a"
                f" suite, as in 'columns: {{{role}: {next(iter(record), role)}}}'."
            )


def _rename(record: Record, columns: Mapping[ColumnRole, str]) -> Record:
    """Return the question and the answer under usual keys, unless their columns are such."""
    usual = {"question": QUESTION_KEYS, "answer": ANSWER_KEYS}
    return {
        role: record.get(column)
        for role, column in columns.items()
        if role in usual and column not in usual[role] and role not in record
    }


def _adapt_task(name: str, benchmark: Benchmark, task: Task) -> Task:
    """Return a question of the benchmark, graded by its rule."""
    own = {key: value for key, value in task.meta.items() if key not in (SPLIT_KEY, GRADED_BY_KEY)}
    meta = own | {"data_source": name}
    if benchmark.graded_by != BY_TESTS:
        meta[GRADED_BY_KEY] = benchmark.graded_by
    changed = replace(task, meta=meta)
    if benchmark.graded_by == BY_TESTS and resolve_grader(changed) not in TEST_REWARD_NAMES:
        raise UserError(
            f"the question '{task.id}' of the benchmark '{name}' has no tests: give a file with"
            " tests, or set graded_by of the benchmark in the file of a suite."
        )
    return changed


def describe_rule(graded_by: str, judge_model: str | None) -> str:
    """Return the grading rule of a benchmark, with its version, for tables and reports. Raises
    UserError for a judge without its model."""
    if graded_by == BY_TESTS:
        return "the tests of each question"
    if graded_by == JUDGE:
        if judge_model is None:
            raise UserError(
                "it is graded by a judge: give --judge-url and --judge-model, or set graded_by: em"
                " for it in the file of a suite."
            )
        return f"{JUDGE_RULES[0]} by {judge_model}"
    if graded_by == MATH:
        return f"math with Math-Verify {_find_version('math-verify')}"
    return next((rule for rule in RULES if rule.startswith(f"{graded_by}/")), graded_by)


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # grading then fails with advice
        return "(not installed)"
