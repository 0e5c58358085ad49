"""Arguments of programs to an agent: forms of questions and stages, and every mistake."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

import fieldcraft as fc
from checkpoints import write_tiny_checkpoint
from fieldcraft.data.question_objects import parse_question_objects
from fieldcraft.data.tasks import read_tasks, write_tasks
from fieldcraft.runs.arguments import name_stages, open_questions_file

ROWS: list[dict[str, Any]] = [
    {"question": f"How many live in {city}?", "answer": "7"} for city in ("Rome", "Turin", "Bari")
]
OPTIM = fc.Optim(lr=1e-3)
RL = fc.Rl(steps=1, rewards={"em": 1.0}, optim=OPTIM)
SFT = fc.Sft(steps=1, dataset="demonstrations", optim=OPTIM)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> fc.Agent:
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", "qwen2")
    return fc.load(folder, dialect="hermes")


# -- questions -----------------------------------------------------------------------------------


def test_the_same_questions_in_every_form(tmp_path: Path) -> None:
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    wanted = parse_question_objects(ROWS).tasks
    assert (wanted[0].question, wanted[0].answers) == ("How many live in Rome?", ("7",))
    for given in (
        tuple(ROWS),
        iter(ROWS),
        datasets.Dataset.from_list(ROWS),
        pandas.DataFrame(ROWS),
        wanted,
    ):
        assert parse_question_objects(given).tasks == wanted
    write_tasks(wanted, tmp_path / "q.jsonl")
    assert read_tasks(tmp_path / "q.jsonl") == wanted


def test_empty_cells_and_numbers_of_a_table() -> None:
    pandas = pytest.importorskip("pandas")
    rows = [{**ROWS[0], "level": "hard"}, {**ROWS[1], "answer": ["7", "seven"]}]
    first, second = parse_question_objects(pandas.DataFrame(rows)).tasks
    assert (first.meta, second.meta) == ({"level": "hard"}, {})
    assert second.answers == ("7", "seven")


def test_numbers_of_a_table_keep_their_digits() -> None:
    pandas = pytest.importorskip("pandas")
    rows = [{"question": "How much?", "answer": value} for value in (0.123456789012345, 1e-12)]
    tasks = parse_question_objects(pandas.DataFrame(rows)).tasks
    assert [float(task.answers[0]) for task in tasks] == [0.123456789012345, 1e-12]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "there are no questions: give at least one."),
        (5, "the questions are 5: give a file, or a list of dicts"),
        (None, "the questions are None: give a file"),
        ({"question": "Who?"}, "the questions are {'question': 'Who?'}: give a file, or a list"),
        ([*ROWS, "Who?"], "record 4 of the given questions is 'Who?': give a file"),
        (
            [{"question": "Who?", "answer": object()}],
            "contains a value that cannot be stored as JSON",
        ),
        ([{"answer": "7"}], "record 1 of the given questions: there is no question"),
    ],
)
def test_other_questions_are_a_sentence(given: object, message: str) -> None:
    with pytest.raises(fc.UserError) as caught:
        parse_question_objects(given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("1", "Who?", "BrunSkil"), "answers is 'BrunSkil': give a tuple, as ('BrunSkil',)."),
        (("1", "Who?", None, None), "answers is None: give a tuple, as ('Ada',)."),
        (("1", "Who?", ("Ada", 3)), "answers holds 3: give texts."),
        ((1, "Who?", ("Ada",)), "id is 1: give a text."),
        (("1", None, ("Ada",)), "question is None: give a text."),
        (("1", "Who?", ("Ada",), None), "meta is None: give a dict."),
        (
            ("1", "Who?", ("Ada",), {"score": math.nan}),
            "metadata.score is NaN: write null or a number.",
        ),
    ],
)
def test_fields_of_a_task_are_checked(fields: tuple[Any, ...], message: str) -> None:
    with pytest.raises(fc.UserError) as caught:
        parse_question_objects([fc.Task(*fields)])
    assert str(caught.value).startswith(f"record 1 of the given questions: {message}")


def test_metadata_of_a_task_are_those_of_a_file() -> None:
    odd = fc.Task("1", "Who?", ("Ada",), {"odd": object()})
    with pytest.raises(fc.UserError, match=r"record 1 of .* cannot be stored as JSON"):
        parse_question_objects([odd])
    given = fc.Task("1", "Who?", ["Ada"], {"path": ("a", "b")})  # type: ignore[arg-type]
    [task] = parse_question_objects([given]).tasks
    assert task == fc.Task("1", "Who?", ("Ada",), {"path": ["a", "b"]})


def test_a_task_that_an_environment_grades_needs_no_answer() -> None:
    task = fc.Task("1", "Go.", (), {"graded_by": "environment"})
    assert parse_question_objects([task]).tasks == [task]


def test_a_dict_of_splits_and_a_table_with_one_name_twice() -> None:
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})
    with pytest.raises(fc.UserError, match="a dict of the splits train: give one of them"):
        parse_question_objects(splits)
    with pytest.raises(fc.UserError, match="give each column a unique name"):
        parse_question_objects(pandas.DataFrame([["a", "b"]], columns=["question", "question"]))


# -- stages --------------------------------------------------------------------------------------


def test_stages_by_name_as_a_list_or_one_alone() -> None:
    assert name_stages({"mine": RL}) == {"mine": RL}
    assert name_stages(RL) == {"rl": RL}
    assert name_stages([SFT, RL]) == {"sft": SFT, "rl": RL}
    assert list(name_stages((SFT, SFT, RL))) == ["sft1", "sft2", "rl"]


@pytest.mark.parametrize("stages", [5, None, "rl", [5], {"rl": {"steps": 1}}, {5: RL}, fc.Rl])
def test_other_stages_are_a_sentence(stages: object) -> None:
    with pytest.raises(fc.UserError, match=r"^stages (is|holds) .*fc\.Rl"):
        name_stages(stages)


@pytest.mark.parametrize("stages", [[], (), {}])
def test_a_training_has_a_stage(stages: object) -> None:
    with pytest.raises(fc.UserError, match=r"^stages is empty: give one stage or more"):
        name_stages(stages)


# -- mistakes write no files -----------------------------------------------------------------------


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("error", [fc.UserError("wrong"), ValueError("odd"), KeyboardInterrupt()])
def test_whatever_refuses_a_run_leaves_nothing(
    error: BaseException, there: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    if there:
        folder.mkdir()

    def refuse() -> None:
        with open_questions_file(parse_question_objects(ROWS).tasks, folder) as file:
            assert file.exists()
            raise error

    with pytest.raises(type(error)):
        refuse()
    assert [*tmp_path.rglob("*")] == ([folder] if there else [])


def test_the_same_tasks_resume_a_run_whatever_their_texts_are(tmp_path: Path) -> None:
    tasks = [
        fc.Task("", " Who? ", (" Ada", "Ada")),
        fc.Task("", "Where?", ("Oslo",), {"supporting_facts": {"title": ["Oslo"]}}),
        fc.Task("1", "Why \ud83d?", ("No",)),
    ]
    with open_questions_file(tasks, tmp_path) as file:
        written = file.read_bytes()
    (tmp_path / "recipe.json").write_text("{}")
    with open_questions_file(tasks, tmp_path) as file:
        assert file.read_bytes() == written
    for others in (tasks[1:], [*tasks[:2], fc.Task("1", "Why?", ("Yes",))]):
        with pytest.raises(fc.UserError, match="holds a run with other questions"):
            open_questions_file(others, tmp_path).__enter__()


def test_questions_that_cannot_be_written_leave_nothing(tmp_path: Path) -> None:
    odd = fc.Task("a", "Who?", ("Ada",), {"odd": object()})
    with pytest.raises(TypeError), open_questions_file([odd], tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()


def test_a_corrected_call_finds_no_trace_of_the_mistake(agent: fc.Agent, tmp_path: Path) -> None:
    for keys in ({"tasks": [5]}, {"stages": [5]}, {"sed": 1}, {"tasks": ROWS[:1]}):
        given: dict[str, Any] = {"tasks": ROWS, "stages": RL, **keys}
        with pytest.raises(fc.UserError):
            agent.train(given.pop("tasks"), given.pop("stages"), out=tmp_path / "run", **given)
        assert not (tmp_path / "run").exists()


def test_other_mistakes_are_sentences(agent: fc.Agent) -> None:
    for call, message in (
        (lambda: agent.ask(5), "the question is 5: give it as a text."),  # type: ignore[arg-type]
        (lambda: agent.ask(" "), "the question is ' ': give it as a text."),
        (lambda: agent.evaluate(5), "the questions are 5: give a file"),
        (lambda: agent.train(ROWS, RL, out=5), "out is 5: give the path of a folder."),  # type: ignore[arg-type]
        (lambda: fc.load(5), "path is 5: give the path of a folder."),  # type: ignore[arg-type]
        (lambda: fc.load(agent.model, tools="search"), "tools is 'search': give a list"),
        (lambda: fc.load(agent.model, tools=5), "tools is 5: give a list"),  # type: ignore[arg-type]
        (lambda: agent.ask("\ud800 lone"), r"the question is not UTF-8: '\ud800 lone': remove"),
        (
            lambda: fc.load(agent.model, instruction="\ud800"),
            r"'instruction' is wrong: '\ud800' is not UTF-8: remove the characters that UTF-8",
        ),
    ):
        with pytest.raises(fc.UserError) as caught:
            call()
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ({"name": "search"}, "tools holds 'search' for 'name': give a list of tools, or a dict"),
        ({"search": None}, "tools holds None for 'search': give a list of tools, or a dict"),
        ([3], "tools holds 3: give names, classes, and functions with @tool."),
        ([None], "tools holds None: give names, classes, and functions with @tool."),
        ([{"name": "search"}], "tools holds {'name': 'search'}: give names, classes, and"),
    ],
)
def test_tools_of_other_types_are_a_sentence(tools: Any, message: str, agent: fc.Agent) -> None:
    with pytest.raises(fc.UserError) as caught:
        fc.load(agent.model, tools=tools)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("allow", [None, 3, [3], "mcp"])
def test_permissions_of_other_types_are_a_sentence(allow: Any, agent: fc.Agent) -> None:
    with pytest.raises(fc.UserError, match=r"^allow is .*: give a list of names, as in"):
        fc.load(agent.model, allow=allow)


@pytest.mark.parametrize("share", ["x", None, -1, 2, math.nan, True])
def test_a_share_of_rejected_records_is_a_number_from_0_to_1(share: Any, agent: fc.Agent) -> None:
    with pytest.raises(fc.UserError, match=r"^max_left_out is .*: give a number from 0 to 1\.$"):
        agent.evaluate(ROWS, max_left_out=share)


@pytest.mark.parametrize("seed", ["x", 1.5, None, True])
def test_a_seed_is_a_whole_number(seed: Any, agent: fc.Agent) -> None:
    with pytest.raises(fc.UserError, match=r"^seed is .*: give a whole number\.$"):
        agent.ask("Who?", temperature=1.0, seed=seed)


@pytest.mark.parametrize("temperature", [math.inf, math.nan, 1e300, -1])
def test_a_temperature_has_a_limit(temperature: float, agent: fc.Agent) -> None:
    with pytest.raises(
        fc.UserError, match=r"^temperature: it must be (100\.0 or less|0\.0 or more), not "
    ):
        agent.ask("Who?", temperature=temperature)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"on_event": None}, "on_event is None: give a function of one event, or leave it out."),
        ({"on_event": 3}, "on_event is 3: give a function of one event, or leave it out."),
        ({"seeds": [0, 1]}, "seeds trains one agent per seed, but a call returns one agent"),
    ],
)
def test_training_is_refused_before_it_begins(
    keys: dict[str, Any], message: str, agent: fc.Agent, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(fc.UserError) as caught:
        agent.train(ROWS, RL, out=out, **keys)
    assert str(caught.value).startswith(message)
    with pytest.raises(fc.UserError) as caught:
        asyncio.run(agent.atrain(ROWS, RL, out=out, **keys))
    assert str(caught.value).startswith(message)
    assert not out.exists()
