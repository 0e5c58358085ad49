"""Published question sets by name, and suites of them, from `benchmarks.yaml` or a user's file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, PositiveInt, ValidationError

from fieldcraft.config.base import ConfigSection
from fieldcraft.config.choices import ENVIRONMENT_REWARD, EnvironmentConfig
from fieldcraft.config.hub_names import parse_hub_dataset
from fieldcraft.config.names import suggest_name
from fieldcraft.config.numbers import PositiveFraction, Temperature, UnitFraction
from fieldcraft.config.validation_errors import locate_validation_error
from fieldcraft.records.meta import TASK_GRADERS
from fieldcraft.records.paths import expand_home
from fieldcraft.records.reading import parse_yaml, raise_read_errors
from fieldcraft.types import UserError

BY_TESTS = "tests"  # value of `graded_by`: each question is graded by its own tests
PYTHON_KEY = "python"  # setting of an environment: the interpreter that has its package
ColumnRole = Literal["question", "answer", "tests"]


class Benchmark(ConfigSection):
    """A question set, with its source, its grading rule and its usual sampling; the comment at the
    top of `benchmarks.yaml` describes the keys."""

    title: str
    source: str = ""
    hub: str | None = None
    hub_file: str | None = None
    published_file: str | None = None
    file: Path | None = None  # a user's own file, instead of the published data
    environment: EnvironmentConfig | None = None  # of questions that are not in files
    budget: dict[str, Any] = Field(default={})
    columns: dict[ColumnRole, str] = Field(default={})
    graded_by: str = "em"
    size: PositiveInt | None = None
    samples: PositiveInt = 1
    temperature: Temperature = 0.0
    top_p: PositiveFraction | None = None
    max_left_out: UnitFraction = 0.1
    licence: str = ""
    note: str = ""

    def find_violations(self) -> Iterator[str]:
        if self.hub is not None and parse_hub_dataset(self.hub) is None:
            yield f"hub={self.hub} is not a data set: write hub:org/name/configuration:split"
        rules = (ENVIRONMENT_REWARD,) if self.environment else (BY_TESTS, *TASK_GRADERS)
        if self.graded_by not in rules:
            names = ", ".join(rules)
            yield f"graded_by={self.graded_by} is no grading rule: use one of {names}"
        if self.environment and (self.hub or self.published_file or self.file):
            yield "an environment has its own questions: give it, or a file, but not both"
        if self.environment and not self.environment.is_external:
            yield "environment must name an external environment, such as bfcl or text"
        if self.budget and not self.environment:
            yield "budget applies to a benchmark with an environment only: remove it"
        if self.hub_file is not None and self.hub is None:
            yield "hub_file is a file of the repository hub: set hub"
        if self.samples > 1 and not self.temperature:
            yield "greedy samples of a question are identical: set temperature, as in 0.6"

    @property
    def origin(self) -> str:
        """Place of its data, for a table."""
        if self.environment is not None:
            return f"environment {self.environment.name}"
        if self.file is not None:
            return str(self.file)
        if self.hub_file is not None:
            return f"{self.hub}, {self.hub_file}"
        return self.hub or self.published_file or "a file of yours"


_ALL = "*"  # key of all benchmarks without another key


def _name_all(samples: Any) -> Any:
    return samples if isinstance(samples, Mapping) else {_ALL: samples}


class Suite(ConfigSection):
    """Benchmarks that are reported together, with the sampling of one paper.

    `samples` is a number, or a number by benchmark; `questions` is the maximum number of questions
    of each benchmark, a random selection that is the same for every model.
    """

    title: str
    source: str = ""
    benchmarks: dict[str, Benchmark]
    temperature: Temperature | None = None
    top_p: PositiveFraction | None = None
    samples: Annotated[dict[str, PositiveInt], BeforeValidator(_name_all)] = Field(default={})
    questions: PositiveInt | None = None
    note: str = ""

    def find_violations(self) -> Iterator[str]:
        if not self.benchmarks:
            yield "a suite needs benchmarks: give their names, as in [nq, popqa]"
        if self.temperature == 0 and max(self.samples.values(), default=1) > 1:
            yield "greedy samples of a question are identical: set temperature, as in 0.6"
        for name in self.samples.keys() - {*self.benchmarks, _ALL}:
            yield f"samples.{name} is no benchmark of the suite: remove it"

    def get_sampling(self, name: str) -> dict[str, Any]:
        """Return the sampling keys of a benchmark: of the suite, or else its usual ones."""
        benchmark = self.benchmarks[name]
        temperature = self.temperature if self.temperature is not None else benchmark.temperature
        has_own_sampling = self.temperature is not None or self.top_p is not None
        top_p = self.top_p if has_own_sampling else benchmark.top_p
        samples = self.samples.get(name, self.samples.get(_ALL))
        if samples is None:  # greedy samples would be identical
            samples = benchmark.samples if self.temperature is None else 1
        return {"temperature": temperature, "top_p": top_p, "samples": samples}

    def with_python(self, python: Path) -> Suite:
        """Return the suite with an interpreter for the packages of its environments. Raises
        UserError if it has no environment."""
        changed: dict[str, Benchmark] = {}
        for name, benchmark in self.benchmarks.items():
            if benchmark.environment is not None:
                environment = benchmark.environment.model_copy(update={PYTHON_KEY: str(python)})
                changed[name] = benchmark.model_copy(update={"environment": environment})
        if not changed:
            raise UserError(
                "--python names the interpreter of a benchmark that has one of its own, such as"
                " bfcl-multiple, and none is asked: leave it out."
            )
        return self.model_copy(update={"benchmarks": {**self.benchmarks, **changed}})

    def with_max_left_out(self, share: float) -> Suite:
        """Return the suite with this maximum share of unreadable records for each file."""
        changed = {
            name: benchmark.model_copy(update={"max_left_out": share})
            for name, benchmark in self.benchmarks.items()
        }
        return self.model_copy(update={"benchmarks": changed})

    def select(self, names: list[str]) -> Suite:
        """Return the suite with some of its benchmarks. Raises UserError for an unknown name."""
        for name in names:
            if name not in self.benchmarks:
                raise UserError(
                    f"the suite has no benchmark '{name}': {suggest_name(name, self.benchmarks)}"
                )
        selected = {name: self.benchmarks[name] for name in dict.fromkeys(names)}
        samples = {k: n for k, n in self.samples.items() if k in selected or k == _ALL}
        return self.model_copy(update={"benchmarks": selected, "samples": samples})


def require_data_folder(folder: Path) -> None:
    """Raise UserError unless the files of benchmarks can be in a folder."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the one that has files such as nq.jsonl.")


@cache
def load_benchmarks() -> Mapping[str, Benchmark]:
    """Return the published benchmarks by name."""
    return {
        name: Benchmark.model_validate(keys) for name, keys in _read_table()["benchmarks"].items()
    }


@cache
def load_suites() -> Mapping[str, Suite]:
    """Return the built-in suites by name."""
    return {name: parse_suite(name, keys) for name, keys in _read_table()["suites"].items()}


@cache
def _read_table() -> dict[str, Any]:
    text = (resources.files("fieldcraft.evaluation") / "benchmarks.yaml").read_text("utf-8")
    table: dict[str, Any] = yaml.safe_load(text)
    return table


def find_suite(name: str | None, benchmarks: list[str]) -> Suite:
    """Return a suite by its name or its YAML file, restricted to the named benchmarks if there are
    any; without a suite, the named benchmarks with their usual sampling.

    Raises UserError for an unknown name, and for an invalid file.
    """
    if name is None:
        return parse_suite("benchmarks", {"title": "benchmarks", "benchmarks": benchmarks})
    if Path(name).suffix in (".yaml", ".yml"):
        suite = read_suite_file(Path(name))
    elif name in load_suites():
        suite = load_suites()[name]
    elif name in load_benchmarks():
        raise UserError(f"'{name}' is a benchmark and no suite: give it with --benchmark.")
    else:
        raise UserError(
            f"there is no suite '{name}', and a file of one ends in .yaml:"
            f" {suggest_name(name, load_suites())}"
        )
    return suite.select(benchmarks) if benchmarks else suite


def read_suite_file(path: Path) -> Suite:
    """Read a suite of a YAML file. Its files are relative to it. Raises UserError for a file that
    is missing or invalid."""
    with raise_read_errors(path, "give the YAML file of a suite"):
        text = path.read_bytes()
    keys = parse_yaml(text, path, "correct it")
    if not isinstance(keys, dict):
        raise UserError(f"{path} is not a suite: write benchmarks, as in 'benchmarks: [nq]'.")
    return parse_suite(str(path), {"title": path.stem, **keys}, path.parent)


def parse_suite(name: str, keys: Mapping[str, Any], folder: Path = Path()) -> Suite:
    """Return the suite with the given keys. `benchmarks` is a list of names, or maps names to
    files, relative to `folder`, or to keys of `Benchmark`. Raises UserError for invalid keys."""
    listed = keys.get("benchmarks", [])
    if not isinstance(listed, list | Mapping) or not all(isinstance(n, str) for n in listed):
        raise UserError(
            f"{name}: benchmarks must be a list of names, or files by name, as in {{nq: nq.jsonl}}."
        )
    changes = listed if isinstance(listed, Mapping) else dict.fromkeys(listed)
    found = {str(key): _resolve(str(key), change, folder) for key, change in changes.items()}
    try:
        return Suite.model_validate({**keys, "benchmarks": found})
    except ValidationError as error:
        raise _make_error(name, error) from error


def _resolve(name: str, change: Any, folder: Path) -> dict[str, Any]:
    """Return the keys of a benchmark: those of the table, with the user's changes."""
    known = load_benchmarks().get(name)
    if known is None and change is None and name in _read_table()["suites"]:
        raise UserError(f"'{name}' is a suite and no benchmark: give it with --suite.")
    if known is None and change is None:
        raise UserError(
            f"there is no benchmark '{name}', and the suite gives no file for it:"
            f" {suggest_name(name, load_benchmarks())}"
        )
    own = change if isinstance(change, Mapping) else {} if change is None else {"file": change}
    if isinstance(file := own.get("file"), str):
        own = {**own, "file": folder / expand_home(file)}
    usual: dict[str, Any] = {"title": name} if known is None else known.model_dump()
    if "environment" in own:
        usual |= {"graded_by": ENVIRONMENT_REWARD, "size": None}
    if known is not None and "file" in own and "columns" not in own:
        usual["columns"] = {}  # a file may be in any format that is read
    return {**usual, **own}


def _make_error(name: str, error: ValidationError) -> UserError:
    return UserError(f"{name}: {locate_validation_error(error)}.")
