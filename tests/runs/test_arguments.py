"""Arguments of programs to an agent: forms of questions and stages, and every mistake."""

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
    ):
        with pytest.raises(fc.UserError) as caught:
            call()
        assert message in str(caught.value)
