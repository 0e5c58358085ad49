"""Files of common formats, read and graded as specified in expected/.

Each entry has the `shape` of a file, the recipe `key` that accepts it, the number of records that
are `read`, and the reasons for records `left_out`. `agreed` is the share of omitted records that a
reader must allow. For the question `of`, an entry has the accepted answers (`gold`), some metadata,
the grader, and a `right` and a `wrong` answer. A demonstration has its `steps`, and a pair both
sides. `passages` is the number of passages of the file as a corpus. `refused` contains the error
messages of other keys.
"""

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from fieldcraft.data.corpora import CorpusFile
from fieldcraft.data.file_formats import read_any_demonstrations, read_any_pairs
from fieldcraft.data.grading import Grader
from fieldcraft.data.passages import Passage, read_corpus
from fieldcraft.data.record_files import write_records
from fieldcraft.data.records import read_records
from fieldcraft.data.steps_io import serialise_steps
from fieldcraft.data.tasks import INVALID_REASON, UNANSWERABLE_REASON, read_task_file
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.rewards.grading import MATH, resolve_grader
from fieldcraft.rewards.programs import StdinTestReward, UnitTestReward
from fieldcraft.runs.build import make_verdict_reward
from fieldcraft.types import Answer, DemoStep, Task, UserError
from unguarded import Unguarded

HERE = Path(__file__).parent
FILES = HERE / "files"
EXPECTED: dict[str, Any] = {
    name: expected
    for file in sorted((HERE / "expected").iterdir())
    for name, expected in yaml.safe_load(file.read_text()).items()
}
DOCS = HERE.parents[1] / "docs" / "lab-notes" / "file-formats.md"
READERS: dict[str, Callable[..., tuple[Sequence[Any], Counter[str]]]] = {
    "tasks": read_task_file,
    "demonstrations": read_any_demonstrations,
    "pairs": read_any_pairs,
}


def of_key(*keys: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [n for n, e in EXPECTED.items() if e["key"] in keys])


def graded(tasks: Sequence[Task], expected: dict[str, Any]) -> None:
    """Check that the expected task exists, and that its grader distinguishes correct from wrong
    answers."""
    [task] = [t for t in tasks if t.question.endswith(_end(expected["of"], t))]
    assert list(task.answers) == expected["gold"]
    assert expected.get("meta", {}).items() <= task.meta.items()
    assert resolve_grader(task) == expected["grader"]
    if expected["grader"] == MATH:
        pytest.importorskip("math_verify", reason="mathematics needs the extra code")
    recipe = parse_recipe({"name": "wild", "world": {"name": "atlas"}, "stages": STAGES})
    assert recipe.verdict_reward == "auto"
    grader = Grader(
        make_verdict_reward(recipe, UnitTestReward(Unguarded()), StdinTestReward(Unguarded()))
    )
    verdicts = [asyncio.run(grader.grade(task, [Answer(expected[k])])) for k in ("right", "wrong")]
    assert verdicts == [True, False]


STAGES = {
    "sft": {"type": "sft", "dataset": "short", "batch_size": 4, "epochs": 1, "optim": {"lr": 1e-5}}
}


def _end(question: str, task: Task) -> str:
    """Return the end of a task's question: in a task of calls, the query ends a dialogue."""
    return f"<user> {question} </user>" if "calls" in task.meta else question


def as_records(steps: Sequence[DemoStep]) -> list[dict[str, Any]]:
    return serialise_steps(steps)


def test_every_file_is_expected() -> None:
    assert {path.name for path in FILES.iterdir()} == EXPECTED.keys()


@of_key("tasks", "demonstrations", "pairs")
def test_it_is_read_as_expected(name: str) -> None:
    expected = EXPECTED[name]
    read, left_out = READERS[expected["key"]](FILES / name, expected.get("agreed", 0.1))
    assert len(read) == expected["read"]
    assert left_out == expected.get("left_out", {})
    if "agreed" in expected:  # more than a tenth is not recognised
        with pytest.raises(UserError, match=r"would be left out .* allow it with max_left_out="):
            READERS[expected["key"]](FILES / name)
    else:
        assert left_out.keys() <= {UNANSWERABLE_REASON, INVALID_REASON}


@of_key("tasks", "demonstrations")
def test_it_is_graded_as_expected(name: str) -> None:
    """A file of demonstrations is also a file of questions, graded by the final answers."""
    expected = EXPECTED[name]
    tasks, _ = read_task_file(FILES / name, expected.get("agreed", 0.1))
    for case in (expected, *expected.get("also", ())):
        graded(tasks, case)


@of_key("demonstrations")
def test_its_steps_are_those_expected(name: str) -> None:
    expected = EXPECTED[name]
    found, _ = read_any_demonstrations(FILES / name, expected.get("agreed", 0.1))
    assert [as_records(s) for t, s in found if t.question == expected["of"]] == [expected["steps"]]


@of_key("pairs")
def test_its_sides_are_those_expected(name: str) -> None:
    expected = EXPECTED[name]
    pairs, _ = read_any_pairs(FILES / name, expected.get("agreed", 0.1))
    [pair] = [pair for pair in pairs if pair.task.question == expected["of"]]
    assert as_records(pair.chosen) == expected["chosen"]
    assert as_records(pair.rejected) == expected["rejected"]


@pytest.mark.parametrize("name", [n for n, e in EXPECTED.items() if "passages" in e])
def test_its_passages_are_a_corpus(name: str, tmp_path: Path) -> None:
    passages = list(
        read_corpus(CorpusFile(FILES / name).ensure_passages(tmp_path / "corpus.jsonl"))
    )
    assert len(passages) == EXPECTED[name]["passages"]
    if "first" in EXPECTED[name]:
        assert passages[0] == Passage(*EXPECTED[name]["first"])


REFUSED = [(name, key) for name, e in EXPECTED.items() for key in e.get("refused", {})]


@pytest.mark.parametrize(("name", "key"), REFUSED)
def test_another_key_says_where_it_belongs(name: str, key: str, tmp_path: Path) -> None:
    def as_corpus(path: Path) -> Path:
        return CorpusFile(path).ensure_passages(tmp_path / "c.jsonl")

    with pytest.raises(UserError) as raised:
        (as_corpus if key == "corpus" else READERS[key])(FILES / name)
    sentence = str(raised.value)
    assert EXPECTED[name]["refused"][key] in sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")


TABLES = [n for n, e in EXPECTED.items() if e["key"] in READERS and n.endswith(".jsonl")]
# Tables do not support texts and lists under one key.
MIXED = {"trl_prompt_completion.jsonl", "trl_preference.jsonl"}


@pytest.mark.parametrize("ending", ["json", "json.gz", "jsonl.gz", "parquet"])
@pytest.mark.parametrize("name", TABLES)
def test_it_is_the_same_in_another_file(name: str, ending: str, tmp_path: Path) -> None:
    if ending == "parquet" and name in MIXED:
        return
    expected = EXPECTED[name]
    same = tmp_path / f"{Path(name).stem}.{ending.removesuffix('.gz')}"
    write_records([record for _, record in read_records(FILES / name)], same)
    if ending.endswith(".gz"):
        packed = same.with_name(f"{same.name}.gz")
        packed.write_bytes(gzip.compress(same.read_bytes()))
        same = packed
    read, agreed = READERS[expected["key"]], expected.get("agreed", 0.1)
    assert read(same, agreed) == read(FILES / name, agreed)


def test_the_page_on_file_formats_has_every_shape() -> None:
    rows = [line.split("|")[1].strip() for line in DOCS.read_text().splitlines() if "|" in line[:1]]
    assert {expected["shape"].partition(",")[0] for expected in EXPECTED.values()} <= {*rows}


def test_the_files_are_small() -> None:
    assert all(len(path.read_bytes()) < 6000 for path in FILES.iterdir())
    assert all(json.dumps(record) for path in FILES.iterdir() for _, record in read_records(path))
