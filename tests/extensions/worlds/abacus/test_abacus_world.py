"""Abacus: instructions and their programs, notes, splits, and an oracle without needless calls."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.world import make_world
from fieldcraft.extensions.worlds.abacus.instructions import (
    OPERATIONS,
    Instruction,
    InstructionStep,
    is_heldout,
    parse_instruction,
)
from fieldcraft.extensions.worlds.abacus.oracle import (
    COMPUTE_THOUGHT,
    READ_THOUGHT,
    AbacusOracle,
    always_compute,
    make_careless,
    make_closed_book_steps,
    make_compute_call,
)
from fieldcraft.extensions.worlds.abacus.questions import SPLITS, parse_task_instruction
from fieldcraft.types import Answer, Observation, Task, Thought, ToolCall, UserError

CHANGES = st.builds(InstructionStep, st.sampled_from(list(OPERATIONS)), st.integers(0, 9999))
INSTRUCTIONS = st.builds(
    Instruction, st.integers(0, 9999), st.lists(CHANGES, min_size=1, max_size=4).map(tuple)
)


@pytest.fixture(scope="module")
def world():
    return make_world("abacus", {}, 3)


@pytest.fixture(scope="module")
def evaluation(world):
    return world.evaluation_questions(dict.fromkeys(SPLITS, 150))


def test_an_instruction_reads_and_computes_as_written():
    instruction = Instruction(
        4821, (InstructionStep("+", 377), InstructionStep("*", 52), InstructionStep("-", 100))
    )
    assert str(instruction) == "Take 4821, add 377, multiply by 52, take away 100."
    assert instruction.expression == "(4821 + 377) * 52 - 100"
    assert instruction.values == [4821, 5198, 270296, 270196]
    assert instruction.statements == [
        "4821 plus 377 is 5198.",
        "5198 times 52 is 270296.",
        "270296 minus 100 is 270196.",
    ]
    assert instruction.is_trap
    assert not instruction.is_small


@given(INSTRUCTIONS)
def test_the_program_of_an_instruction_follows_it(instruction):
    assert eval(instruction.expression) == instruction.result
    assert parse_instruction(f"LookupError: no. {instruction} What is the result?") == instruction


@given(INSTRUCTIONS)
def test_a_trap_is_an_instruction_whose_parentheses_matter(instruction):
    obvious = " ".join(
        [str(instruction.start), *(f"{c.symbol} {c.number}" for c in instruction.steps)]
    )
    assert instruction.is_trap or eval(obvious) == instruction.result


@pytest.mark.parametrize(
    ("instruction", "repeats"),
    [
        ("Take 4821, add 3760.", False),  # 48 21 37 60 and 85 81
        ("Take 4848, add 1000.", True),  # 48 48
        ("Take 4821, multiply by 48.", True),  # 48 21 48
        ("Take 4821, add 1031.", False),  # 58 52: 82 is not an aligned pair of digits
        ("Take 2113, add 1000.", True),  # the result 31 13 repeats the 13 of 21 13
        ("Take 3131, add 7.", True),
    ],
)
def test_a_pair_of_digits_that_occurs_twice_is_seen(instruction, repeats):
    assert parse_instruction(instruction).has_repeated_digits == repeats


def test_no_large_number_repeats_its_digits(world, evaluation):
    notes = (
        parse_instruction(str(instruction)) for instruction in world.notebook.instructions.values()
    )
    tasks = (parse_task_instruction(task) for task in evaluation)
    found = [
        instruction for instruction in (*notes, *tasks) if instruction and not instruction.is_small
    ]
    assert len(found) > 100
    assert not [instruction for instruction in found if instruction.has_repeated_digits]


def test_what_is_small_is_what_is_taught():
    assert Instruction(7, (InstructionStep("+", 5), InstructionStep("-", 3))).is_small
    assert not Instruction(7, (InstructionStep("*", 5),)).is_small
    assert not Instruction(20, (InstructionStep("+", 1),)).is_small
    assert not Instruction(
        12, (InstructionStep("+", 9), InstructionStep("-", 9))
    ).is_small  # 21 is an intermediate result


def test_the_notes_run_as_the_oracle_says(world):
    """The module is actually executed, as the programs of a run import it."""
    scope: dict = {}
    exec(world.files()["notes.py"], scope)
    name = next(iter(world.notebook.instructions))
    assert scope["note"](name) == str(world.notebook.instructions[name])
    for giver, holder in list(world.notebook.new_holders.items())[:50]:
        with pytest.raises(LookupError) as raised:
            scope["note"](giver)
        assert str(raised.value) == f"{giver} gave it to {holder}."
        assert scope["note"](holder) == str(world.notebook.get_instruction(giver))


def test_no_question_of_an_evaluation_is_trained(world, evaluation):
    trained = world.training_questions(4000)
    assert len(trained) == 4000
    assert not {task.id for task in trained if task.meta["hops"] > 1} & {t.id for t in evaluation}
    for tasks, heldout in ((trained, False), (evaluation, True)):
        numbers = {
            number
            for task in tasks
            if (instruction := world.oracle.get_instruction(task)) and not instruction.is_small
            for number in (instruction.start, *(change.number for change in instruction.steps))
        }
        assert {is_heldout(number) for number in numbers} == {heldout}
    assert not set(world.train_abacus.notebook.instructions) & set(
        world.test_abacus.notebook.instructions
    )


def test_each_split_is_what_it_says(evaluation):
    splits = {name: [t for t in evaluation if t.meta["split"] == name] for name in SPLITS}
    assert {len(tasks) for tasks in splits.values()} == {150}
    assert min(task.meta["calls_optimal"] for task in splits["heldout"]) == 1
    assert {task.meta["calls_optimal"] for task in splits["known"]} == {0}
    assert {task.meta["calls_optimal"] for task in splits["mixed"]} == {0, 1, 2, 3}
    assert all(parse_task_instruction(task).is_trap for task in splits["traps"])
    assert {task.meta["hops"] for task in splits["four_steps"]} == {4}


def test_the_oracle_is_right_with_the_calls_it_says(world, evaluation):
    for task in evaluation:
        steps = world.oracle.demonstration(task)
        calls = sum(isinstance(step, ToolCall) for step in steps)
        assert steps[-1] == Answer(task.answers[0])
        assert calls == world.oracle.optimal_calls(task) == task.meta["calls_optimal"]


def test_a_note_that_was_given_away_takes_reading_the_error(world):
    giver, holder = next(
        (giver, holder)
        for giver, holder in world.train_abacus.notebook.new_holders.items()
        if not world.notebook.instructions[holder].is_small
    )
    instruction = world.notebook.instructions[holder]
    task = world.train_abacus.make_note_task(giver, "train")
    read = 'from notes import note\nprint(note("{}"))'
    assert world.oracle.demonstration(task) == [
        Thought(READ_THOUGHT),
        ToolCall("python", {"code": read.format(giver)}),
        Observation(f"LookupError: {giver} gave it to {holder}."),
        Thought(READ_THOUGHT),
        ToolCall("python", {"code": read.format(holder)}),
        Observation(str(instruction)),
        Thought(COMPUTE_THOUGHT),
        ToolCall("python", {"code": f"print({instruction.expression})"}),
        Observation(str(instruction.result)),
        Answer(str(instruction.result)),
    ]


def test_the_wasteful_teacher_computes_what_is_small(world):
    instruction = Instruction(7, (InstructionStep("+", 5),))
    task = world.train_abacus.make_direct_task(instruction, "train")
    wasteful = AbacusOracle(world.notebook, always_compute)
    assert [type(s) for s in wasteful.demonstration(task)] == [
        Thought,
        ToolCall,
        Observation,
        Answer,
    ]
    assert world.oracle.demonstration(task) == [Thought("7 plus 5 is 12."), Answer("12")]


def program(code: str) -> ToolCall:
    return ToolCall("python", {"code": code})


def test_a_teacher_in_a_hurry_forgets_parentheses():
    instruction = Instruction(
        1000, (InstructionStep("+", 2000), InstructionStep("*", 30), InstructionStep("-", 4000))
    )
    steps = [
        Thought(COMPUTE_THOUGHT),
        make_compute_call(instruction),
        Observation("86000"),
        Answer("86000"),
    ]
    assert make_careless(steps, instruction, random.Random(0)) == [
        Thought(COMPUTE_THOUGHT),
        program("print(1000 + 2000 * 30 - 4000)"),
        Observation("57000"),
        Answer("57000"),
    ]


def test_a_teacher_in_a_hurry_gives_up_at_an_error():
    failed = Observation("LookupError: Jun Krur gave it to Bur Dul.")
    steps = [Thought(READ_THOUGHT), program("1"), failed, Thought(READ_THOUGHT), program("2")]
    found = make_careless(steps, Instruction(1, ()), random.Random(0))
    assert found == [*steps[:3], Answer("unknown")]


def test_a_teacher_in_a_hurry_guesses_what_a_note_asks_for():
    instruction = Instruction(4821, (InstructionStep("+", 3775),))
    note = Observation(str(instruction))
    given = [Thought(READ_THOUGHT), program("1"), note]
    computed = [
        Thought(COMPUTE_THOUGHT),
        make_compute_call(instruction),
        Observation("8596"),
        Answer("8596"),
    ]
    *before, thought, answer = make_careless([*given, *computed], instruction, random.Random(0))
    assert before == given
    assert isinstance(answer, Answer)
    assert answer.text != "8596"
    assert thought == Thought(f"The result is {answer.text}.")


def test_a_teacher_in_a_hurry_is_right_about_the_rest():
    instruction = Instruction(7, (InstructionStep("+", 5),))
    steps = [Thought("7 plus 5 is 12."), Answer("12")]
    assert make_careless(steps, instruction, random.Random(0)) == steps


@given(
    st.integers(1, 99), st.lists(st.tuples(st.sampled_from("+-*"), st.integers(1, 99)), max_size=5)
)
def test_the_obvious_result_is_what_python_prints(start, changes):
    instruction = Instruction(start, tuple(InstructionStep(*change) for change in changes))
    assert instruction.naive_result == eval(instruction.naive_expression)
    assert instruction.result == eval(instruction.expression)


def test_without_programs_large_numbers_are_unknown():
    assert make_closed_book_steps(Instruction(4821, (InstructionStep("+", 377),)))[-1] == Answer(
        "unknown"
    )


def test_decisions_choose_a_program_only_where_one_is_needed(world, evaluation):
    for task in evaluation[::25]:
        for decision in world.oracle.decisions(task, random.Random(0)):
            before = world.oracle.next_step(task, decision.before)
            assert decision.chosen[0] == before
            assert decision.chosen != decision.rejected


def test_the_oracle_knows_only_its_own_programs(world):
    task = world.training_questions(1)[0]
    with pytest.raises(ValueError, match="does not know what"):
        world.oracle.next_step(task, [ToolCall("python", {"code": "print(1 / 0)"})])
    with pytest.raises(ValueError, match="not a question of this world"):
        world.oracle.get_instruction(Task("x", "Who are you?", ("1",)))


def test_a_world_with_few_notes_still_fills_its_splits():
    small = make_world("abacus", {"notes": 5, "heldout_notes": 5}, 0)
    found = small.evaluation_questions({"heldout": 40, "mixed": 40})
    assert {t.meta["kind"] for t in found} >= {"program", "note"}


@pytest.mark.parametrize("key", ["notes", "heldout_notes"])
def test_the_smallest_world_has_two_notes(key):
    with pytest.raises(UserError, match=f"'{key}' .* is wrong: it must be 2 or more, not 1"):
        make_world("abacus", {key: 1}, 0)
    small = make_world("abacus", {"notes": 2, "heldout_notes": 2, "mistakes": 1.0}, 0)
    tasks = small.training_questions(20) + small.evaluation_questions({"heldout": 20})
    kinds = {task.meta["kind"] for task in tasks}
    assert kinds == {"head", "program", "note", "given"}
    assert all(small.team_demonstration(task, random.Random(0)) for task in tasks)
