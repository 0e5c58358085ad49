"""Questions of user-provided files: no run is trained on the questions of its evaluations."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.data.decontamination import IN_EVALUATION
from fieldcraft.data.steps_io import ContrastivePair, write_demonstrations, write_pairs
from fieldcraft.data.tasks import read_tasks
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.records.events import EventBus, LogMessage
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.file_inputs import FileData, note_unoffered_calls
from fieldcraft.runs.run import run_recipe
from fieldcraft.runs.sources import CheckWarning
from fieldcraft.types import Answer, DemoStep, Observation, Task, Thought, ToolCall, UserError

DIALECT = make_dialect("autocoa", tiny_tokenizer())
ENCODER = DemonstrationEncoder(DIALECT)
SFT = {
    "type": "sft",
    "dataset": "demonstrations",
    "steps": 1,
    "batch_size": 2,
    "optim": {"lr": 1e-5},
}
RL = {"type": "rl", "steps": 1, "questions_per_step": 1, "group_size": 2, "optim": {"lr": 1e-6}}
TOWNS = ("Northport", "Eastwick", "Southmere", "Westfield", "Midvale", "Highcliff")


def question(town: str) -> Task:
    return Task(f"id of {town}", f"Who founded {town}?", (f"{town} Ada",))


def write(path: Path, tasks: Sequence[Task]) -> str:
    records = ({"id": t.id, "question": t.question, "answer": t.answers[0]} for t in tasks)
    path.write_text("\n".join(map(json.dumps, records)))
    return str(path)


def write_ways(path: Path, tasks: Sequence[Task]) -> str:
    """Write correct demonstrations, or correct pairs for `pairs.jsonl`."""
    steps: list[DemoStep] = [Thought("So."), Answer("")]
    right = [(task, [steps[0], Answer(task.answers[0])]) for task in tasks]
    if path.name == "pairs.jsonl":
        wrong = (Thought("Or."), Answer("nobody"))
        write_pairs(path, [ContrastivePair(task, (), tuple(way), wrong) for task, way in right])
    else:
        write_demonstrations(path, right)
    return str(path)


def recipe(folder: Path, **keys: Any) -> Recipe:
    evaluation = {"workflows": [], **keys.pop("evaluation", {})}
    given = {"name": "small", "model": str(folder), "tools": [], "stages": {"sft": SFT}}
    return parse_recipe({**given, "evaluation": evaluation, **keys})


def trained_on(inputs: FileData) -> list[Task]:
    """Return every question that a stage or a selection could learn from."""
    found = inputs.train_tasks()
    if inputs.recipe.demonstrations is not None:
        found += [t.task for t in inputs.load_usable_demonstrations(ENCODER)[0]]
        found += [task for task, _ in inputs.demonstrations("demonstrations", None)]
    if inputs.recipe.pairs is not None:
        found += [t.task for both in inputs.load_usable_pairs(ENCODER)[0] for t in both]
    return found


# -- no evaluation question is trained on ---------------------------------------------------------

variants = st.sampled_from(["Who founded {}?", "who  founded {}", "WHO FOUNDED {}!"])
names = st.sampled_from([*TOWNS, *(f"Town{n}" for n in range(6))])
tasks = st.builds(
    lambda identity, form, name: Task(identity, form.format(name), ("Ada",)),
    st.sampled_from("abcdefghijklmnop"),
    variants,
    names,
)
files = st.lists(tasks, min_size=2, max_size=12)


@settings(max_examples=60, deadline=None)
@given(files, files, files, files, st.integers(0, 6))
def test_no_question_that_is_asked_is_trained_on(
    own: list[Task], examples: list[Task], pairs: list[Task], tests: list[Task], heldout: int
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        left = [question(f"Free{n}") for n in range(len(own) + 1)]  # some of them are trained on
        evaluation: dict[str, Any] = {"tasks": {"nq": write(folder / "nq.jsonl", tests)}}
        if heldout:
            evaluation["splits"] = {"heldout": heldout, "nq": 3}
        inputs = FileData(
            recipe(
                folder,
                tasks=write(folder / "tasks.jsonl", [*own, *left]),
                demonstrations=write_ways(folder / "shown.jsonl", examples),
                pairs=write_ways(folder / "pairs.jsonl", pairs),
                evaluation=evaluation,
            )
        )
        trained = trained_on(inputs)
        tested = inputs.test_tasks()
        words = {plain(task.question) for task in tested}
        assert not [task for task in trained if plain(task.question) in words]
        assert not {task.id for task in trained} & {task.id for task in tested}
        clean = [t for t in examples if plain(t.question) not in words and t.id not in ids(tested)]
        usable, reasons = inputs.load_usable_demonstrations(ENCODER)
        assert [t.task.question for t in usable] == [t.question for t in clean]
        assert reasons[IN_EVALUATION] == len(examples) - len(clean)


def plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def ids(tested: Sequence[Task]) -> set[str]:
    return {task.id for task in tested}


def test_demonstrations_of_held_out_questions_are_left_out(tmp_path: Path) -> None:
    """Questions and demonstrations are about the same tasks, which is the usual case."""
    own = [question(town) for town in TOWNS]
    found = recipe(
        tmp_path,
        tasks=write(tmp_path / "tasks.jsonl", own),
        demonstrations=write_ways(tmp_path / "shown.jsonl", own),
        evaluation={"splits": {"heldout": 2}},
    )
    inputs = FileData(found)
    usable, reasons = inputs.load_usable_demonstrations(ENCODER)
    assert {t.task.id for t in usable} == ids(inputs.train_tasks())
    assert reasons == {IN_EVALUATION: 2}
    assert inputs.notes == [f"2 left out: {IN_EVALUATION}"]
    inputs = FileData(found)
    assert len(inputs.demonstrations("demonstrations", None)) == len(usable)
    assert inputs.notes == [f"2 left out: {IN_EVALUATION}"]


@pytest.mark.parametrize("data", ["demonstrations", "pairs"])
def test_without_any_other_question_one_sentence_says_what_to_do(data: str, tmp_path: Path) -> None:
    own = [question(town) for town in TOWNS]
    found = recipe(
        tmp_path,
        **{data: write_ways(tmp_path / f"{data}.jsonl", own)},
        evaluation={"tasks": write(tmp_path / "asked.jsonl", own)},
    )
    inputs = FileData(found)
    read = inputs.pairs if data == "pairs" else inputs.encoded
    with pytest.raises(
        UserError, match=r"can be used \(6 asked by an evaluation\): give some of o"
    ):
        read(data, None, ENCODER)


def test_a_question_that_stands_twice_in_a_file_is_on_one_side(tmp_path: Path) -> None:
    own = [question(town) for town in TOWNS]
    again = [Task(f"again {task.id}", task.question.upper(), task.answers) for task in own]
    file = write(tmp_path / "tasks.jsonl", [*own, *again])
    inputs = FileData(recipe(tmp_path, tasks=file, evaluation={"splits": {"heldout": 4}}))
    tested = {plain(task.question) for task in inputs.test_tasks()}
    assert not tested & {plain(task.question) for task in inputs.train_tasks()}
    count = 8 - len(inputs.train_tasks())
    assert count > 0
    assert f"{count} questions of {file} left out: {IN_EVALUATION}" in inputs.warnings()


def test_near_duplicates_are_named_and_kept(tmp_path: Path) -> None:
    test_question = Task("x", "Who founded the old harbour town of Northport?", ("Ada Lind",))
    near = Task("y", "Who founded the old harbour town of Northport then?", ("Ada Lind",))
    inputs = FileData(
        recipe(
            tmp_path,
            tasks=write(tmp_path / "tasks.jsonl", [near, question("Eastwick")]),
            demonstrations=write_ways(tmp_path / "shown.jsonl", [near]),
            pairs=write_ways(tmp_path / "pairs.jsonl", [near]),
            evaluation={"tasks": write(tmp_path / "asked.jsonl", [test_question])},
        )
    )
    [remark] = inputs.warnings()
    inputs.encoded("demonstrations", None, ENCODER)
    [demonstration_note] = inputs.notes
    inputs.pairs("pairs", None, ENCODER)
    [pair_note] = inputs.notes
    for note in (remark, demonstration_note, pair_note):
        assert isinstance(note, CheckWarning)
        assert note.startswith("1 of the questions of ")
        assert f"such as {near.question!r}, where it asks {test_question.question!r}" in note
    assert near.id in ids(trained_on(inputs))


def test_questions_that_only_share_an_id_are_left_out_and_named(tmp_path: Path) -> None:
    """They may be paraphrases, or other questions of a file with ids of the same pattern."""
    own = [question("Eastwick"), Task("q1", "Who paints?", ("Ada",))]
    evaluation_tasks = [Task("q1", "Who sings?", ("Bo",))]
    inputs = FileData(
        recipe(
            tmp_path,
            tasks=write(tmp_path / "tasks.jsonl", own),
            demonstrations=write_ways(tmp_path / "shown.jsonl", own),
            evaluation={"tasks": write(tmp_path / "asked.jsonl", evaluation_tasks)},
        )
    )
    assert ids(trained_on(inputs)) == {own[0].id}
    filter_notes = inputs.notes
    inputs.encoded("demonstrations", None, ENCODER)
    for notes in (inputs.warnings(), inputs.notes, filter_notes):
        count, doubt = notes
        assert count.startswith("1 ")
        assert count.endswith(f"left out: {IN_EVALUATION}")
        assert isinstance(doubt, CheckWarning)
        assert "such as 'Who paints?', where it asks 'Who sings?': give them ids" in doubt


# -- files of evaluations -----------------------------------------------------------------------


def test_a_single_file_is_the_held_out_split(tmp_path: Path) -> None:
    own, tested = [question(town) for town in TOWNS[:4]], [question(town) for town in TOWNS[4:]]
    found = recipe(
        tmp_path,
        tasks=write(tmp_path / "tasks.jsonl", own),
        evaluation={"tasks": write(tmp_path / "asked.jsonl", tested)},
    )
    inputs = FileData(found)
    assert ids(inputs.train_tasks()) == ids(own)
    assert [(t.id, t.meta["split"]) for t in inputs.test_tasks()] == [
        (task.id, "heldout") for task in tested
    ]
    assert (inputs.warnings(), found.evaluation.leading_split) == ([], "heldout")
    assert parse_recipe(dump_recipe(found)) == found


def test_every_file_is_a_split(tmp_path: Path) -> None:
    nq = write(tmp_path / "nq.jsonl", [question(town) for town in TOWNS[:3]])
    hotpot = write(tmp_path / "hotpot.jsonl", [question(town) for town in TOWNS[3:]])
    own = write(tmp_path / "tasks.jsonl", [question(f"Town{n}") for n in range(4)])

    def splits(**wanted: int) -> tuple[list[str], list[str]]:
        evaluation: dict[str, Any] = {"tasks": {"nq": nq, "hotpot": hotpot}}
        evaluation |= {"splits": wanted} if wanted else {}
        inputs = FileData(recipe(tmp_path, tasks=own, evaluation=evaluation))
        assert len(inputs.train_tasks()) == 4 - wanted.get("heldout", 0)
        split_names = [task.meta["split"] for task in inputs.test_tasks()]
        assert inputs.recipe.evaluation.leading_split == split_names[0]
        return split_names, inputs.warnings()

    assert splits() == (["nq"] * 3 + ["hotpot"] * 3, [])
    split_names, remarks = splits(hotpot=2)
    assert split_names == ["hotpot"] * 2 + ["nq"] * 3
    assert remarks == [f"evaluation.splits.hotpot=2, so 2 of the 3 questions of {hotpot} are used"]
    assert splits(hotpot=0)[0] == ["nq"] * 3
    assert splits(nq=5, hotpot=3)[1] == [f"evaluation.splits.nq=5, but {nq} has only 3 questions"]
    assert splits(heldout=1)[0] == ["heldout"] + ["nq"] * 3 + ["hotpot"] * 3


def test_the_questions_of_a_part_are_the_same_for_every_seed(tmp_path: Path) -> None:
    own = write(tmp_path / "tasks.jsonl", [question("Eastwick")])
    file = write(tmp_path / "asked.jsonl", [question(f"Town{n}") for n in range(50)])
    evaluation = {"tasks": {"some": file}, "splits": {"some": 10}}
    first, second = (
        FileData(recipe(tmp_path, tasks=own, evaluation=evaluation, seed=seed)).test_tasks()
        for seed in (0, 1)
    )
    assert first == second
    assert [task.id for task in first] != [f"id of Town{n}" for n in range(10)]


def test_files_that_count_alike_have_questions_with_ids_of_their_own(tmp_path: Path) -> None:
    one, other = ([Task("test_0", f"Who founded {town}?", ("A",))] for town in TOWNS[:2])
    files = {
        "nq": write(tmp_path / "nq.jsonl", one),
        "hotpot": write(tmp_path / "hotpot.jsonl", other),
    }
    inputs = FileData(recipe(tmp_path, evaluation={"tasks": files}))
    assert [task.id for task in inputs.test_tasks()] == ["test_0", "hotpot:test_0"]


def test_demonstrations_need_no_questions_to_train_on(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    own = [question(town) for town in TOWNS]
    found = recipe(
        tmp_path,
        model=str(model),
        demonstrations=write_ways(tmp_path / "shown.jsonl", own),
        evaluation={"tasks": write(tmp_path / "asked.jsonl", own[:2])},
        budget={"max_context_tokens": 900, "max_turn_tokens": 40},
    )
    notes: list[str] = []
    assert check_recipe(found, tmp_path, lambda name, noted, _: notes.extend(noted)) == []
    assert "0 to train" in notes
    assert f"2 left out: {IN_EVALUATION}" in notes


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"evaluation": {"tasks": "nowhere.jsonl"}}, "evaluation.tasks.heldout=nowhere.jsonl does"),
        ({"evaluation": {"tasks": {"nq": "nowhere.jsonl"}}}, "evaluation.tasks.nq=nowhere.jsonl"),
        ({"evaluation": {"tasks": ["asked.jsonl"]}}, "it must be a file, or files by name, as in"),
        (
            {"evaluation": {"tasks": {"nq": "asked.jsonl"}, "splits": {"nqq": 3}}},
            "unknown key 'evaluation.splits.nqq'; did you mean 'evaluation.splits.nq'",
        ),
        (
            {"evaluation": {"tasks": {"nq": "asked.jsonl"}, "splits": {"heldout": 3}}},
            "unknown key 'evaluation.splits.heldout'",
        ),
        (
            {"evaluation": {"tasks": {"nq": "asked.jsonl"}, "splits": {"nq": 0}}},
            "an evaluation needs questions",
        ),
        (
            {"evaluation": {"tasks": "asked.jsonl"}, "stages": {"rl": RL}},
            "stage 'rl' needs other questions than evaluation.tasks: give tasks=FILE",
        ),
        (
            {"evaluation": {"tasks": "asked.jsonl"}, "world": {"name": "atlas"}},
            "the questions to train on must be your own, too: give tasks=FILE",
        ),
        (
            {"tasks": "asked.jsonl", "evaluation": {"splits": {"heldout": 0, "x": 1}}},
            "unknown key 'evaluation.splits.x'",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused(
    keys: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("asked.jsonl"), [question("Eastwick")])
    with pytest.raises(UserError, match=re.escape(message)) as error:
        recipe(tmp_path, **keys)
    assert str(error.value).count(". ") == 0


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    inputs = FileData(recipe(tmp_path, evaluation={"tasks": str(tmp_path / "empty.jsonl")}))
    with pytest.raises(UserError, match=r"empty\.jsonl holds no questions"):
        inputs.test_tasks()


def test_a_run_says_what_it_leaves_out_and_evaluates_every_file(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    own = [question(town) for town in TOWNS]
    files = {
        "nq": write(tmp_path / "nq.jsonl", own[:1]),
        "hotpot": write(tmp_path / "hotpot.jsonl", own[1:2]),
    }
    found = recipe(
        tmp_path,
        model=str(model),
        tasks=write(tmp_path / "tasks.jsonl", own),
        demonstrations=write_ways(tmp_path / "shown.jsonl", own),
        evaluation={"tasks": files, "periodic": {"every": 1, "questions": 5}},
        budget={"max_context_tokens": 900, "max_turn_tokens": 8},
    )
    messages: list[str] = []

    def listen(event: Any) -> None:
        if isinstance(event, LogMessage):
            messages.append(event.text)

    report = run_recipe(found, tmp_path / "run", EventBus([listen]))
    assert f"2 questions of {found.tasks} left out: {IN_EVALUATION}" in messages
    assert f"stage sft: 2 left out: {IN_EVALUATION}" in messages
    for entry in report["evals"].values():
        assert entry["split"] == "nq"
        assert {name: part["n"] for name, part in entry["splits"].items()} == {"nq": 1, "hotpot": 1}
    world = tmp_path / "run" / "world"
    assert ids(read_tasks(world / "evaluation.jsonl")) == ids(own[:2])
    assert ids(read_tasks(world / "train.jsonl")) == ids(own[2:])


def test_calls_of_tools_that_no_prompt_shows_are_told() -> None:
    schema = {"type": "function", "function": {"name": "search", "parameters": {}}}
    steps = [ToolCall("search", {}), Observation("a"), ToolCall("tides", {}), Observation("b")]
    demonstrations = [(Task("1", "Q?", ()), steps), (Task("2", "R?", ()), steps[:2])]
    [note] = note_unoffered_calls(demonstrations, [schema])
    assert note.startswith("1 call tools that the run does not have, such as 'tides'")
    assert note_unoffered_calls(demonstrations[1:], [schema]) == []
