"""Program tasks: their tests in each format, and rejected records."""

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.file_formats import read_any_demonstrations
from fieldcraft.data.tasks import read_tasks, write_tasks
from fieldcraft.types import Task, UserError
from source_files import lines

HUMAN_EVAL = {
    "task_id": "HumanEval/0",
    "prompt": "def twice(n):\n    '''2 n'''\n",
    "entry_point": "twice",
    "canonical_solution": "    return 2 * n\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}
MBPP = {
    "task_id": 7,
    "text": "Write a function to add.",
    "code": "def add(a, b):\r\n  return a + b",
    "test_setup_code": "two = 2",
    "test_list": ["assert add(1, two) == 3", "assert add(0, 0) == 0"],
    "challenge_test_list": [],
}
CONTESTS = {"problem": "Add.", "tests": {"inputs": ["1 2\n", "3\n4"], "outputs": ["3\n", "7"]}}


def case(given: str, wanted: str, kind: str) -> dict[str, str]:
    return {"input": given, "output": wanted, "testtype": kind}


def live(public: Any, private: Any, **extra: Any) -> dict[str, Any]:
    return {
        "question_id": "abc_1",
        "question_content": "Add.",
        "difficulty": "easy",
        "starter_code": "",
        "metadata": "{}",
        "public_test_cases": public,
        "private_test_cases": private,
        **extra,
    }


READS = live(json.dumps([case("1 2", "3", "stdin")]), json.dumps([case("2 2\n", "4\n", "stdin")]))
SOLUTION = live(
    json.dumps([case('[1, 2]\n"a\'"', "[[1], true]", "functional")]),
    "[]",
    metadata='{"func_name": "pair"}',
    starter_code="class Solution:\n    def pair(self, xs, s):\n",
)


@pytest.mark.parametrize(
    ("record", "task"),
    [
        (
            HUMAN_EVAL,
            Task(
                "HumanEval/0",
                "def twice(n):\n    '''2 n'''",
                (),
                {
                    "unit_tests": [
                        "def check(candidate):\n    assert candidate(2) == 4\n\ncheck(twice)"
                    ]
                },
            ),
        ),
        (
            MBPP,
            Task(
                "7",
                "Write a function to add.\n\nThe program must pass these tests:\n\n"
                "assert add(1, two) == 3\nassert add(0, 0) == 0",
                (),
                {
                    "unit_tests": [
                        "two = 2\nassert add(1, two) == 3",
                        "two = 2\nassert add(0, 0) == 0",
                    ]
                },
            ),
        ),
        (
            CONTESTS | {"id": "c"},
            Task(
                "c",
                "Add.",
                (),
                {
                    "stdin_tests": [
                        {"input": "1 2\n", "output": "3\n"},
                        {"input": "3\n4", "output": "7"},
                    ]
                },
            ),
        ),
        (
            READS,
            Task(
                "abc_1",
                "Add.",
                (),
                {
                    "difficulty": "easy",
                    "stdin_tests": [
                        {"input": "1 2", "output": "3"},
                        {"input": "2 2\n", "output": "4\n"},
                    ],
                },
            ),
        ),
    ],
    ids=["HumanEval", "MBPP", "CodeContests", "LiveCodeBench"],
)
def test_the_fields_ways_to_write_tests(tmp_path: Path, record: Any, task: Task) -> None:
    assert read_tasks(lines(tmp_path / "a.jsonl", record)) == [task]
    write_tasks([task], tmp_path / "b.jsonl")  # without answers, and read again
    assert read_tasks(tmp_path / "b.jsonl") == [task]


@pytest.mark.parametrize(
    ("program", "passes"),
    [
        ('class Solution:\n    def pair(self, xs, s):\n        return (xs[:1], s == "a\'")', True),
        ("def pair(xs, s):\n    return [xs[:1], True]", True),
        ("def pair(xs, s):\n    return [xs, True]", False),
    ],
)
def test_livecodebench_calls_a_function(tmp_path: Path, program: str, passes: bool) -> None:
    [task] = read_tasks(lines(tmp_path / "a.jsonl", SOLUTION))
    assert task.question == (
        "Add.\n\nBegin with this code:\n\nclass Solution:\n    def pair(self, xs, s):"
    )
    [test] = task.meta["unit_tests"]
    variables: dict[str, Any] = {}
    exec(program, variables)
    if passes:
        exec(test, variables)
    else:
        with pytest.raises(AssertionError):
            exec(test, variables)


class Bomb:
    def __reduce__(self) -> Any:
        return (open, ("/nowhere/at/all",))


@given(texts=st.lists(st.text(max_size=20), max_size=3), protocol=st.integers(0, 5))
def test_a_text_in_a_pickle_is_read(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], protocol: int
) -> None:
    cases = [{"input": text, "output": text, "testtype": "stdin"} for text in ["1", *texts]]
    text = json.dumps(cases, ensure_ascii=False).encode(errors="replace").decode()
    pickled = base64.b64encode(zlib.compress(pickle.dumps(text, protocol))).decode()
    path = lines(tmp_path_factory.mktemp("live") / "a.jsonl", live("[]", pickled))
    [task] = read_tasks(path)
    wanted = [{"input": c["input"], "output": c["output"]} for c in json.loads(text)]
    assert task.meta["stdin_tests"] == wanted


@pytest.mark.parametrize("damage", [lambda b: b[:-4], lambda b: b"AAAA" + b, lambda b: b[:-8]])
def test_a_damaged_pickle_is_a_sentence(tmp_path: Path, damage: Any) -> None:
    pickled = base64.b64encode(damage(zlib.compress(pickle.dumps("[]" * 40)))).decode()
    with pytest.raises(UserError, match=r"line 1: the (list of|private) tests .*; "):
        read_tasks(lines(tmp_path / "a.jsonl", live("[]", pickled)))


def test_a_pickle_is_refused_and_never_loaded(tmp_path: Path) -> None:
    pickled = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    with pytest.raises(UserError, match=r"the private tests are a pickle that contains more"):
        read_tasks(lines(tmp_path / "a.jsonl", live("[]", pickled)))


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (HUMAN_EVAL | {"test": " "}, "the question has no tests; add some"),
        (MBPP | {"test_list": []}, "the question has no tests; add some"),
        (CONTESTS | {"tests": {"inputs": [], "outputs": []}}, "the question has no tests"),
        (live("[]", "[]"), "the question has no tests"),
        (live("", None), "the question has no tests"),
        (CONTESTS | {"tests": {"inputs": ["1"], "outputs": []}}, "list of tests cannot be read"),
        (CONTESTS | {"tests": {"inputs": [1], "outputs": ["1"]}}, "or an output is not text"),
        (live("[{}]", "[]"), "the list of tests lacks 'testtype'; correct it"),
        (live("[", "[]"), "the list of tests is not JSON"),
        (SOLUTION | {"metadata": "{}"}, "the list of tests lacks 'func_name'"),
    ],
)
def test_tests_that_are_none(tmp_path: Path, record: Any, complaint: str) -> None:
    path = lines(tmp_path / "a.jsonl", record)
    with pytest.raises(UserError) as raised:
        read_tasks(path)
    assert str(raised.value).startswith(f"{path}, line 1: ")
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("record", "task"),
    [
        (
            {
                "problem": "Find $r$.",
                "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
                "unique_id": "test/precalculus/807.json",
                "level": 2,
            },
            Task(
                "test/precalculus/807.json",
                "Find $r$.",
                ("\\left( 3, \\frac{\\pi}{2} \\right)",),
                {"level": 2, "graded_by": "math"},
            ),
        ),
        (
            {"ID": "2024-I-1", "Problem": "How many?", "Answer": 33},
            Task("2024-I-1", "How many?", ("33",), {"graded_by": "math"}),
        ),
        (
            {"id": 60, "problem": "How many?", "answer": "033", "graded_by": "em"},
            Task("60", "How many?", ("033",), {"graded_by": "em"}),  # the record takes precedence
        ),
    ],
)
def test_mathematics(tmp_path: Path, record: Any, task: Task) -> None:
    assert read_tasks(lines(tmp_path / "a.jsonl", record)) == [task]


@pytest.mark.parametrize(
    ("file", "count", "key"),
    [
        ("code/HumanEval.jsonl.gz", 164, "unit_tests"),
        ("code/mbpp_974.jsonl", 974, "unit_tests"),
        ("code/code_contests_165.json", 165, "stdin_tests"),
    ],
)
def test_real_files_of_programs(shared: Path, file: str, count: int, key: str) -> None:
    tasks = read_tasks(shared / "data" / file)
    assert len({task.id for task in tasks}) == len(tasks) == count
    assert all(task.question and task.meta[key] and not task.answers for task in tasks)


@pytest.mark.parametrize(
    ("file", "count", "first"),
    [
        ("gsm8k_test_1319.jsonl", 1319, "18"),
        ("math500.json", 500, "\\left( 3, \\frac{\\pi}{2} \\right)"),
        ("olympiadbench_675_verl.parquet", 675, "2"),
    ],
)
def test_real_files_of_mathematics(shared: Path, file: str, count: int, first: str) -> None:
    tasks = read_tasks(shared / "data" / "math" / file)
    assert (len(tasks), tasks[0].answers) == (count, (first,))
    # the instruction of another framework is not part of a question
    assert not any("structured functions" in task.question for task in tasks)


ASKED = {"question": "Add.", "answer": "def add(a, b): return a + b"}
PAIR = {"input": "1 2", "output": "3"}


@pytest.mark.parametrize(
    "tests",
    [
        {"tests": [{"stdin": "1 2", "stdout": "3"}]},
        {"test_cases": [{"input": "1 2", "expected_output": "3"}]},
        {"input_output": '{"inputs": ["1 2"], "outputs": ["3"]}'},
        {"verification_info": {"language": "python", "test_cases": [PAIR]}},
    ],
)
def test_cases_may_name_what_is_read_and_printed_in_several_ways(
    tests: dict[str, Any], tmp_path: Path
) -> None:
    [task] = read_tasks(lines(tmp_path / "a.jsonl", ASKED | tests))
    assert task.meta == {"stdin_tests": [PAIR]}


@pytest.mark.parametrize(
    "tests",
    [
        {"test_list": ["assert add(1, 2) == 3"]},
        {"test": "assert add(1, 2) == 3"},
        {"tests": "assert add(1, 2) == 3"},
    ],
)
def test_assertions_grade_a_program_under_any_of_their_keys(
    tests: dict[str, Any], tmp_path: Path
) -> None:
    [task] = read_tasks(lines(tmp_path / "a.jsonl", ASKED | tests))
    assert task.meta == {"unit_tests": ["assert add(1, 2) == 3"]}


def test_a_question_of_leetcode_has_its_judges_imports_and_no_prompt(tmp_path: Path) -> None:
    record = HUMAN_EVAL | {"query": "Double it.", "prompt": "from math import *"}
    [task] = read_tasks(lines(tmp_path / "a.jsonl", record))
    assert (task.question, task.meta["prelude"]) == ("Double it.", "from math import *")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"tests": [{"in": "1 2", "out": "3"}]}, "none of the forms that are read"),
        ({"tests": "def test_add():\n    assert add(1, 2) == 3"}, "none of the forms"),
        ({"tests": [PAIR | {"testtype": "functional"}]}, "call a function and do not name it"),
        ({"tests": [PAIR | {"type": "function_call"}]}, "call a function and do not name it"),
        ({"tests": [PAIR], "language": "Java"}, "are of programs in java"),
        ({"verification_info": {"language": "cpp", "test_cases": [PAIR]}}, "of programs in cpp"),
        ({"tests": ["assert (add(1, 2) == 3;"]}, "one of them is not Python"),
        (HUMAN_EVAL | {"test": "console.assert(twice(1) === 2)"}, "one of them is not Python"),
        (HUMAN_EVAL | {"test": "class Tests(unittest.TestCase): ..."}, "no function 'check'"),
    ],
)
def test_tests_that_nothing_could_run_are_never_a_text_to_repeat(
    record: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"cannot be read .*{reason}"):
        read_tasks(lines(tmp_path / "a.jsonl", ASKED | record))


@pytest.mark.parametrize("other", [{"language": "en"}, {"test": "dev"}, {"tests": []}])
def test_keys_that_mean_something_else_change_nothing(
    other: dict[str, Any], tmp_path: Path
) -> None:
    [task] = read_tasks(lines(tmp_path / "a.jsonl", {"question": "Q?", "answer": "A"} | other))
    assert (task.answers, task.meta) == (("A",), {})


def test_tests_of_a_demonstration_that_cannot_be_read_are_no_answer(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": "A"}]
    truth = {"ground_truth": {"inputs": ["1"], "outputs": []}}
    [(task, _)], _ = read_any_demonstrations(
        lines(tmp_path / "a.jsonl", {"messages": messages, "reward_model": truth})
    )
    assert task.answers == ()
