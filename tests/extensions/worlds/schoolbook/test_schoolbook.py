"""Word problems: kinds, wordings, records, splits, demonstrations, and baselines."""

import asyncio
import random
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.sandbox.tool import make_python
from fieldcraft.extensions.worlds.schoolbook import program
from fieldcraft.extensions.worlds.schoolbook.expressions import calculate
from fieldcraft.extensions.worlds.schoolbook.kinds import KINDS, NUM_TRAINED_WORDINGS, ProblemKind
from fieldcraft.extensions.worlds.schoolbook.oracle import UNKNOWN_ANSWER, Solver
from fieldcraft.extensions.worlds.schoolbook.probes import make_probes
from fieldcraft.extensions.worlds.schoolbook.problems import Ability, Problem, parse_problem
from fieldcraft.extensions.worlds.schoolbook.records import (
    TEXT_ERROR,
    ZERO_ERROR,
    Entry,
    EntryState,
    is_heldout_name,
)
from fieldcraft.extensions.worlds.schoolbook.sampling import SPLITS, list_head_groups
from fieldcraft.extensions.worlds.schoolbook.world import SchoolbookWorld
from fieldcraft.types import (
    Answer,
    Author,
    CallOutcome,
    Observation,
    Status,
    Task,
    Thought,
    ToolCall,
    Trajectory,
    UserError,
)

EVALUATED = [split for split in SPLITS if split != "train"]
DIALECT = make_dialect("torl", tiny_tokenizer(), "")


@cache
def world() -> SchoolbookWorld:
    """Return a small world for a model that can solve every third group in its head."""
    return SchoolbookWorld(0, records=120, heldout_records=60).small_copy()


def recorded(state: EntryState, kind: str, value: int, **numbers: int) -> Problem:
    listed_as = "Ada Cole" if state is EntryState.RENAMED else "Ben Hill"
    entry = Entry("Ben Hill", value, state, listed_as)
    return Problem(KINDS[kind], 2, {**numbers, "e": value}, entry)


# -- expressions and kinds ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value", "statements", "is_exact"),
    [
        ("12 + 7", 19, ("12 + 7 = 19",), True),
        ("(4 * 6 - 3) // 7", 3, ("4 * 6 = 24", "24 - 3 = 21", "21 / 7 = 3"), True),
        ("12 + 9 // 3", 15, ("9 / 3 = 3", "12 + 3 = 15"), True),
        ("7 // 2", 3, ("7 / 2 = 3",), False),
        ("5 - 9 + 8", 4, ("5 - 9 = -4", "-4 + 8 = 4"), False),
        ("max(3, 8)", 8, (), True),
    ],
)
def test_expressions_calculated_by_hand(
    expression: str, value: int, statements: Sequence[str], is_exact: bool
) -> None:
    found = calculate(expression)
    assert (found.value, found.statements, found.is_exact) == (value, statements, is_exact)


@pytest.mark.parametrize("expression", ["2 ** 3", "abs(3)", "'a'", "1.5 + 1", "x + 1"])
def test_other_expressions_are_refused(expression: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        calculate(expression)


def test_each_kind_has_eight_wordings_with_all_its_numbers() -> None:
    for kind in KINDS.values():
        assert len(set(kind.wordings)) == 8 > NUM_TRAINED_WORDINGS
        for wording in kind.wordings:
            slots = set(re.findall(r"\{(\w)\}", wording))
            assert slots == set(kind.slots) - {"e"}, wording
            assert ("{holder}" in wording) == kind.is_recorded


SIZED_KINDS = [(kind, size) for kind in KINDS.values() for size in kind.sizes]


@given(st.sampled_from(SIZED_KINDS), st.integers(0, 10**6))
def test_numbers_fit_a_kind_and_the_program_prints_the_answer(
    sized: tuple[ProblemKind, int], seed: int
) -> None:
    kind, size = sized
    numbers = kind.draw_numbers(random.Random(seed), size)
    assert numbers is not None
    assert all(2 <= number <= 999 for number in numbers.values())
    small = [
        *numbers.values(),
        *map(int, re.findall(r"= (\d+)", Problem(kind, size, numbers).statement)),
    ]
    assert (max(small) <= 12) == (size == 0)
    assert size == 0 or len(str(max(numbers.values()))) == size
    expression = kind.render(numbers)
    found = calculate(expression)
    exact = eval(re.sub(r"\d+", r"F(\g<0>)", expression.replace("//", "/")), {"F": Fraction})
    assert found.value == exact == eval(expression) > 0
    assert 1 <= kind.hops <= 3
    assert kind.hops == max(1, len(found.statements))


@pytest.mark.parametrize(
    ("kind", "numbers", "answer"),
    [
        ("gain", {"a": 12, "b": 7}, 19),
        ("left_share", {"a": 50, "b": 8, "c": 6}, 7),
        ("unit_price", {"a": 12, "b": 3, "c": 5}, 20),
        ("minutes", {"a": 2, "b": 45}, 165),
        ("two_kinds", {"a": 3, "b": 12, "c": 2, "d": 10}, 56),
        ("packs", {"a": 4, "b": 10, "c": 5, "d": 7}, 5),
        ("lower", {"a": 31, "b": 29}, 29),
    ],
)
def test_answers_worked_out_by_hand(kind: str, numbers: dict[str, int], answer: int) -> None:
    problem = Problem(KINDS[kind], 2, numbers)
    assert problem.answer == answer
    assert parse_problem(problem.name, {}) == problem


def test_a_name_of_no_problem_is_refused() -> None:
    for name in ("", "gain", "other 1:3,4", "record_sum 1:3@Ben Hill", "gain 1:3"):
        with pytest.raises(ValueError, match=r"is not a problem|argument 2 is shorter"):
            parse_problem(name, {})


# -- records -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "observations", "answer", "calls"),
    [
        (recorded(EntryState.NUMBER, "record_sum", 5, a=10), ["15"], "15", 1),
        (recorded(EntryState.TEXT, "record_sum", 5, a=10), [TEXT_ERROR, "15"], "15", 1),
        (
            recorded(EntryState.RENAMED, "record_product", 6, a=7),
            ["LookupError: Ben Hill is listed as Ada Cole.", "42"],
            "42",
            2,
        ),
        (recorded(EntryState.ZERO, "record_share", 0, a=24), [ZERO_ERROR], "24", 1),
    ],
)
def test_a_demonstration_reads_errors_and_repairs_them(
    problem: Problem, observations: list[str], answer: str, calls: int
) -> None:
    steps = Solver(problem, uses_head=False).list_steps()
    assert [step.text for step in steps if isinstance(step, Observation)] == observations
    assert steps[-1] == Answer(answer)
    assert Ability().count_optimal_calls(problem) == calls


def test_programs_print_what_demonstrations_say(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Run the programs of all states of an entry in the real sandbox."""
    for name, text in world().files().items():
        (tmp_path / name).write_text(text)
    python = make_python(errors="last-line", libraries=(), files=tmp_path)
    shown = {
        (str(task.meta.get("entry")), call.arguments["code"]): observation.text
        for task, steps in world().demonstrations("wasteful", 80)
        for call, observation in pairwise(steps)
        if isinstance(call, ToolCall) and isinstance(observation, Observation)
    }
    assert {state for state, _ in shown} >= {"None", *EntryState}
    env = ToolEnvironment(DIALECT, [python], BudgetConfig(max_calls=len(shown)))

    async def run_all(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
        async def run(rollout) -> None:  # type: ignore[no-untyped-def]
            for _, code in shown:
                await rollout.run_calls((ToolCall("python", {"code": code}),))

        return await env.run_session(Trajectory(task), policy, key, run)

    policy = Policy(engine=ScriptedEngine(tiny_tokenizer(), []))
    calls = asyncio.run(run_all(Task("t", "?", ()), policy, env, "k")).calls
    assert [call.observation for call in calls] == [*shown.values()]
    failed = {
        call.observation.split(":")[0] for call in calls if call.outcome is CallOutcome.FAILED
    }
    assert failed == {"TypeError", "LookupError", "ZeroDivisionError"}


def test_people_of_evaluations_are_in_no_training_question() -> None:
    for problems, heldout in ((world().recorded, False), (world().heldout_recorded, True)):
        for problem in problems:
            assert problem.entry is not None
            assert is_heldout_name(problem.entry.holder) == heldout
            assert is_heldout_name(problem.entry.listed_as) == heldout


def test_too_many_records_are_refused() -> None:
    with pytest.raises(UserError, match="ask for fewer records"):
        SchoolbookWorld(0, records=10, heldout_records=900)


# -- splits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", EVALUATED)
def test_the_questions_of_a_split(split: str) -> None:
    tasks = world().evaluation_questions({split: 40})
    assert len({task.question for task in tasks}) == len(tasks) == 40
    oracle = world().oracle
    for task in tasks:
        problem = oracle.get_problem(task)
        assert task.answers == (str(problem.answer),)
        assert task.question == problem.render_question(task.meta["wording"])
        assert (task.meta["wording"] >= NUM_TRAINED_WORDINGS) == (split == "wordings")
        assert task.meta["known"] == (task.meta["calls_optimal"] == 0)
        assert task.meta["calls_optimal"] == oracle.optimal_calls(task)
    if split in ("known", "unknown"):
        assert {task.meta["calls_optimal"] for task in tasks} == {int(split == "unknown")}
    if split == "repair":
        assert {task.meta["entry"] for task in tasks} == set(EntryState) - {"number"}


def test_no_question_of_an_evaluation_overlaps_a_text_of_training() -> None:
    evaluated = world().evaluation_questions(dict.fromkeys(EVALUATED, 60))
    trained = world().training_questions(2000)
    shown = [task for name in world().datasets for task, _ in world().demonstrations(name, 400)]
    problems = {task.meta["problem"] for task in (*trained, *shown)}
    assert problems.isdisjoint(task.meta["problem"] for task in evaluated)
    questions = {task.question for task in (*trained, *shown)}
    assert questions.isdisjoint(task.question for task in evaluated)
    assert {task.meta["problem"] for task in trained}.isdisjoint(t.meta["problem"] for t in shown)


def test_two_worlds_of_a_seed_are_equal_and_of_another_are_not() -> None:
    same = SchoolbookWorld(0, records=120, heldout_records=60).small_copy()
    other = SchoolbookWorld(1, records=120, heldout_records=60).small_copy()
    questions = [each.training_questions(30) for each in (world(), same, other)]
    assert questions[0] == questions[1] != questions[2]
    assert world().files() == same.files() != other.files()


# -- demonstrations ----------------------------------------------------------------------------


def test_demonstrations_are_correct_but_for_a_careless_teacher() -> None:
    for name in ("demonstrations", "wasteful"):
        for task, steps in world().demonstrations(name, 150):
            assert steps[-1] == Answer(task.answers[0])
    careless = world().demonstrations("careless", 400)
    correct = sum(steps[-1] == Answer(task.answers[0]) for task, steps in careless)
    assert 0.5 < correct / 400 < 0.9
    wrong = [s for t, s in careless if s[-1] != Answer(t.answers[0])]
    assert any(steps[-1] == UNKNOWN_ANSWER for steps in wrong)
    assert any(steps[-1].text.endswith(".0") for steps in wrong)  # type: ignore[union-attr]


def test_what_the_model_can_do_needs_no_program() -> None:
    demonstrated = world().demonstrations("demonstrations", 200)
    wasteful = world().demonstrations("wasteful", 200)
    for task, steps in demonstrated:
        assert any(isinstance(step, ToolCall) for step in steps) != task.meta["known"]
    known = [steps for task, steps in wasteful if task.meta["known"]]
    ran = sum(any(isinstance(step, ToolCall) for step in steps) for steps in known)
    assert 0.25 < ran / len(known) < 0.75
    [thought, answer] = Solver(Problem(KINDS["gain"], 1, {"a": 3, "b": 4}), True).list_steps()
    assert (thought, answer) == (Thought("3 + 4 = 7."), Answer("7"))


def test_the_share_of_known_questions() -> None:
    more = SchoolbookWorld(0, records=120, heldout_records=60, known=0.5).small_copy()
    shares = [
        sum(task.meta["known"] for task in each.training_questions(300)) / 300
        for each in (world(), more)
    ]
    assert shares[1] > shares[0] + 0.2


def test_demonstrations_are_encoded_and_only_the_policy_is_trained() -> None:
    encoder = DemonstrationEncoder(DIALECT, ())
    problem = recorded(EntryState.TEXT, "record_sum", 5, a=10)
    task = Ability().make_task(problem, "train", 0)
    found = encoder.encode(task, Solver(problem, uses_head=False).list_steps())
    assert found.status is Status.ANSWERED
    assert found.answer == "15"
    assert found.well_formed
    authors = [segment.author for segment in found.segments]
    assert authors == [
        Author.PROMPT,
        *(Author.POLICY, Author.TOOL, Author.POLICY, Author.TOOL),
        Author.POLICY,
    ]
    assert found.segments[1].text == (
        'I compute it.\n```python\nfrom records import read\nprint(read("Ben Hill") + 10)\n```\n'
        "```output"
    )


def test_the_decisions_of_the_oracle() -> None:
    oracle = world().oracle
    for task in world().evaluation_questions({"heldout": 60}):
        decisions = list(oracle.decisions(task, random.Random(0)))
        assert sum(each.chooses_tool for each in decisions) >= task.meta["calls_optimal"]
        assert oracle.guess(task, random.Random(0))[-1] != Answer("")
    answered = [*oracle.demonstration(task)]
    with pytest.raises(ValueError, match="nothing follows"):
        oracle.next_step(task, answered)
    with pytest.raises(ValueError, match="does not know"):
        oracle.next_step(task, [ToolCall("python", {"code": "print(1)"})])


# -- the ability of a model --------------------------------------------------------------------


def test_probes_ask_for_all_kinds_without_a_record() -> None:
    probes = make_probes()
    groups = {group.group for group in list_head_groups()}
    assert {str(probe.meta["kind"]) for probe in probes} == groups
    first = probes[0]
    assert first.question.count("Q:") == 4
    assert first.question.endswith("\nA:")
    assert re.search(r"A: \d+ \+ \d+ = \d+\n\n", first.question)
    assert probes == make_probes()


def test_known_and_the_optimum_follow_from_the_share_of_right_probes() -> None:
    rates = {"gain 1|0": 1.0, "gain 1|1": 0.5, "gain 2|0": 0.25}
    ability = world().with_probe_rates(rates).ability
    assert ability.rates == {"gain 1": 0.75, "gain 2": 0.25}
    small, large = (
        Problem(KINDS["gain"], size, {"a": 3 * 10 ** (size - 1), "b": 4}) for size in (1, 2)
    )
    assert [ability.count_optimal_calls(each) for each in (small, large)] == [0, 1]
    meta = ability.make_task(small, "heldout", 0).meta
    assert (meta["known"], meta["recall"], meta["calls_optimal"]) == (True, 0.75, 0)


# -- baselines ---------------------------------------------------------------------------------


def evaluate(workflow, tasks: Sequence[Task], messages: Sequence[str], files) -> list[Trajectory]:  # type: ignore[no-untyped-def]
    python = make_python(errors="last-line", libraries=(), files=files)
    env = ToolEnvironment(DIALECT, [python], BudgetConfig(max_calls=3))
    engine = ScriptedEngine(tiny_tokenizer(), messages)

    async def run() -> list[Trajectory]:
        return [await workflow(t, Policy(engine=engine), env, t.id) for t in tasks]

    return asyncio.run(run())


def test_the_program_answers_trained_wordings_and_repairs_its_errors(tmp_path) -> None:  # type: ignore[no-untyped-def]
    for name, text in world().files().items():
        (tmp_path / name).write_text(text)
    tasks = world().evaluation_questions({"heldout": 30, "repair": 12, "wordings": 6})
    found = evaluate(program.program, tasks, [], tmp_path)
    for task, trajectory in zip(tasks, found, strict=True):
        expected = None if task.meta["split"] == "wordings" else task.answers[0]
        assert trajectory.answer == expected, task.question


def test_every_trained_wording_is_read_as_its_own_calculation() -> None:
    for task in world().training_questions(400):
        [(kind, slots), *others] = program._match_wordings(task.question)
        problem = world().oracle.get_problem(task)
        assert {k: int(v) for k, v in slots.items() if len(k) == 1} == {
            k: v for k, v in problem.numbers.items() if k != "e"
        }
        for each, _ in ((kind, slots), *others):
            assert each.expression == problem.kind.expression


def test_the_few_shot_model_answers_in_its_head_or_by_one_program(tmp_path) -> None:  # type: ignore[no-untyped-def]
    task = Task("t", "Tom has 6 shells and finds 7 more. How many?", ("13",))
    [head] = evaluate(program.few_shot_head, [task], [" 12.\n"], tmp_path)
    assert (head.answer, head.calls) == ("12", [])
    [run] = evaluate(program.few_shot_python, [task], [" print(6 + 7)\n", " 13\n"], tmp_path)
    assert run.answer == "13"
    assert run.calls[0].observation == "13"
    [failed] = evaluate(program.few_shot_python, [task], [" print(x)\n", " 13\n"], tmp_path)
    assert failed.calls[0].outcome is CallOutcome.FAILED
