"""Keys of published data sets, and keys in capitals, are read as the usual ones."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.record_keys import normalise_record
from fieldcraft.data.records import RecordError
from fieldcraft.data.tasks import parse_task, read_task_file
from fieldcraft.rewards.programs import UnitTestReward
from fieldcraft.types import Status, Trajectory
from unguarded import Unguarded

PLAIN = {"question": "Which?", "answer": "b", "options": ["a", "b"], "id": "7", "level": "easy"}


@given(flips=st.lists(st.booleans(), min_size=40, max_size=40))
def test_capitals_of_keys_tell_nothing(flips: list[bool]) -> None:
    turn = iter(flips)
    written = {
        "".join(sign.upper() if next(turn) else sign for sign in key): value
        for key, value in PLAIN.items()
    }
    assert parse_task(written) == parse_task(PLAIN)


def test_a_key_in_small_letters_goes_before_one_in_capitals() -> None:
    assert normalise_record({"answer": "a", "Answer": "b"})["answer"] == "a"


def test_two_keys_in_capitals_that_differ_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = '{"Question": "Who?", "Answer": "Ada", "ANSWER": "Ada"}\n'
    path.write_text(good * 2 + '{"Question": "Who?", "Answer": "Ada", "ANSWER": "Bo"}\n')
    read = read_task_file(path, max_left_out=0.4)
    assert [task.answers for task in read.tasks] == [("Ada",)] * 2
    assert read.rejected_counts == Counter({"keys that differ only in case, such as 'ANSWER'": 1})


@pytest.mark.parametrize("label", [0, 1, True, False])
@pytest.mark.parametrize(
    "more",
    [{"answers": ["Ada"]}, {"options": ["Ada", "Bo"], "answer": "Ada"}, {"golden_answers": ["x"]}],
)
def test_a_label_beside_answers_is_none(label: Any, more: dict[str, Any]) -> None:
    record = {"question": "who is it", "passage": "Ada is.", "label": label, **more}
    assert normalise_record(record) == record


@pytest.mark.parametrize("question", ["who owns it", "Which is it?", "the ferry is whose"])
def test_a_label_of_another_question_may_say_that_its_passage_answers_it(question: str) -> None:
    with pytest.raises(RecordError, match="a 'label' that is not an answer"):
        normalise_record({"question": question, "passage": "x", "label": 1})


KODCODE = {"question": "Double it.", "solution": "", "test_info": []}


@pytest.mark.parametrize(
    "test",
    [
        "import pytest\ndef test_a():\n    pass",
        "from unittest import TestCase\ndef test_a():\n    pass",
        "def test_a():\n    import pytest.mark",
        "def test_a(tmp_path):\n    pass",
        "class TestIt:\n    def test_a(self):\n        pass",
        "async def test_a():\n    pass",
        "def check():\n    pass",
        "import solution\ndef test_a():\n    getattr(solution, 'double')(2)",
        "def test_a(:",
    ],
)
def test_tests_that_nothing_would_run_are_left_out(test: str) -> None:
    with pytest.raises(RecordError, match="tests that cannot be read"):
        parse_task({**KODCODE, "test": test})


@pytest.mark.parametrize("info", [[], None, "", json.dumps([{"function_name": "double"}])])
@pytest.mark.parametrize(
    "test",
    [
        "import solution as s, math\ndef test_a():\n    assert s.double(math.floor(2.5)) == 4",
        "import solution\ndef test_a():\n    assert solution.double(2) == 4",
        "from solution import double as twice\ndef test_a():\n    assert twice(2) == 4",
        "def test_a():\n    from solution import double\n    assert double(2) == 4",
        "from solution import *\ndef test_a():\n    assert double(2) == 4",
    ],
)
def test_a_program_is_the_module_that_its_tests_import(test: str, info: Any) -> None:
    task = parse_task({**KODCODE, "test": test, "test_info": info})
    reward = UnitTestReward(Unguarded())
    for program, right in [
        ("def double(x):\n    return 2 * x", 1.0),
        ("def double(x):\n    return 3 * x", 0.0),
        ("def halve(x):\n    return 2 * x", 0.0),
    ]:
        answered = Trajectory(task, status=Status.ANSWERED, answer=program)
        assert asyncio.run(reward.score_trajectory(answered)) == right
