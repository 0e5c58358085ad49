"""The scripted team of Abacus: its mistakes are real, and all of them are repaired."""

import contextlib
import io
import random
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.filters import Chain
from fieldcraft.dialects import dialect_class, get_dialect
from fieldcraft.dialects.afm import grades_of, score_of
from fieldcraft.dialects.demonstrations import encode_demonstration
from fieldcraft.train.scratch import new_tokenizer
from fieldcraft.types import (
    Action,
    Answer,
    Author,
    Observation,
    Role,
    Status,
    Step,
    Task,
    Thought,
    UserError,
)
from fieldcraft.worlds.abacus.instructions import Change, Instruction
from fieldcraft.worlds.abacus.questions import SPLITS
from fieldcraft.worlds.abacus.team import team_demonstration, wrong_program, wrong_result
from fieldcraft.worlds.base import make_world

WORLD = make_world("abacus", {"notes": 60, "heldout_notes": 30, "mistakes": 1.0}, 7)
TRAINED = WORLD.training_questions(400)
TASKS = [*TRAINED, *WORLD.evaluation_questions(dict.fromkeys(SPLITS, 60))]
TEXTS = WORLD.tokenizer_texts(dialect_class("afm-code").tags)
DIALECT = get_dialect("afm-code", new_tokenizer(TEXTS, WORLD.syllables), "")
LONGEST = 5  # calls: a wrong note, one that was given away, the note, and two programs


def texts(steps: Sequence[Step], role: Role) -> list[str]:
    return [step.text for step in steps if isinstance(step, Thought) and step.role is role]


def grades(steps: Sequence[Step]) -> list[str]:
    return [grades_of(text)["tool_effectiveness"] for text in texts(steps, Role.REFLECT)]


def scores(steps: Sequence[Step]) -> list[int | None]:
    return [score_of(text) for text in texts(steps, Role.CHECK)]


@given(st.sampled_from(TASKS), st.integers(), st.floats(0, 1))
def test_every_chain_is_what_the_dialect_writes(task: Task, seed: int, mistakes: float) -> None:
    notebook = (WORLD.training if task.meta["split"] == "train" else WORLD.testing).notebook
    steps = team_demonstration(notebook, task, random.Random(seed), mistakes)
    encoded = encode_demonstration(task, steps, DIALECT, [])
    assert (encoded.status, encoded.well_formed) == (Status.ANSWERED, True)
    assert encoded.answer == task.answers[0]
    assert [call.arguments for call in encoded.calls] == [
        step.arguments for step in steps if isinstance(step, Action)
    ]
    assert DIALECT.tokenizer.decode(encoded.ids) == "".join(s.text for s in encoded.segments)
    assert len(texts(steps, Role.PLAN)) == 1
    assert len(encoded.calls) <= LONGEST


def test_what_programs_print_is_what_they_print() -> None:
    """Every program of every chain, wrong ones too, is executed for real."""
    scope: dict[str, object] = {}
    exec(WORLD.files()["notes.py"], scope)
    ran = 0
    for number, task in enumerate(TASKS):
        for chain in (WORLD.team_chain, WORLD.lone_chain):
            for action, observed in pairwise(chain(task, random.Random(number))):
                if not isinstance(action, Action):
                    continue
                printed, ran = io.StringIO(), ran + 1
                code = action.arguments["code"].replace("from notes import note\n", "")
                with contextlib.redirect_stdout(printed):
                    try:
                        exec(code, scope)
                    except LookupError as error:
                        print(f"LookupError: {error}")
                assert observed == Observation(printed.getvalue().strip())
    assert ran > 1500


def test_without_mistakes_it_writes_the_fewest_programs() -> None:
    calm = make_world("abacus", {"notes": 60, "heldout_notes": 30, "mistakes": 0.0}, 7)
    for task in TASKS:
        steps = calm.team_chain(task, random.Random(0))
        assert sum(isinstance(s, Action) for s in steps) == task.meta["calls_optimal"]
        assert "poor" not in grades(steps)
        assert scores(steps) == [4]
        lone = calm.lone_chain(task, random.Random(0))
        assert lone[-1] == Answer(task.answers[0])
        assert not any(isinstance(s, Thought) and s.role is not Role.THINK for s in lone)


def test_every_kind_of_mistake_is_seen_and_repaired() -> None:
    for number, task in enumerate(TASKS):
        steps = WORLD.team_chain(task, random.Random(number))
        noted, large = task.meta["kind"] in ("note", "given"), task.meta["kind"] != "head"
        computed = task.meta["calls_optimal"] > {"note": 1, "given": 2}.get(task.meta["kind"], 0)
        assert grades(steps).count("poor") == noted + computed
        assert scores(steps) == [1, 4]
        suggested = texts(steps, Role.SUGGEST)
        assert suggested[0] != suggested[1] == task.answers[0]
        assert steps[-1] == Answer(task.answers[0])
        assert Chain(task, steps).corrects
        codes = [step.arguments["code"] for step in steps if isinstance(step, Action)]
        assert len(set(codes)) == len(codes)  # no program comes again
        assert codes or not large  # a sum in the head whose result failed its check is computed


def test_the_single_agent_sees_none_of_its_mistakes() -> None:
    wrong = [WORLD.lone_chain(t, random.Random(n))[-1] for n, t in enumerate(TASKS)]
    right = sum(answer == Answer(t.answers[0]) for answer, t in zip(wrong, TASKS, strict=True))
    assert right == 0  # each chain suggests a number on the way


def test_mistakes_of_training_name_nobody_of_an_evaluation() -> None:
    held = {name for names in WORLD.testing.names.values() for name in names}
    for number, task in enumerate(TRAINED):
        for chain in (WORLD.team_chain, WORLD.lone_chain):
            named = re.findall(r"[A-Z]\w* [A-Z]\w*", str(chain(task, random.Random(number))))
            assert not held & set(named)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (
            (Change("+", 377), Change("*", 52)),
            {
                ("print(4821 + 377 + 52)", "5250", "It must multiply by 52."),
                ("print(4821 + 377)", "5198", "It does not multiply by 52."),
                ("print(4821 + 377 * 52)", "24425", "The parentheses are missing."),
            },
        ),
        ((Change("-", 1377),), {("print(4821 + 1377)", "6198", "It must take away 1377.")}),
    ],
)
def test_wrong_programs(changes: tuple[Change, ...], found: set[tuple[str, str, str]]) -> None:
    told = Instruction(4821, changes)
    made = [wrong_program(told, random.Random(n)) for n in range(30)]
    assert {(wrong.code, wrong.printed, wrong.review) for wrong in made} == found
    numbers = {"4821", "5198", "377", "52"} if len(changes) > 1 else {"4821", "1377"}
    assert {wrong_result(told, random.Random(n)) for n in range(60)} == numbers


def test_mistakes_come_at_the_set_rate_and_follow_from_the_key() -> None:
    few = make_world("abacus", {"notes": 60, "heldout_notes": 30, "mistakes": 0.25}, 7)
    found = [few.team_chain(task, random.Random(n)) for n, task in enumerate(TASKS)]
    assert found == [few.team_chain(task, random.Random(n)) for n, task in enumerate(TASKS)]
    assert 0.2 < sum(len(scores(steps)) > 1 for steps in found) / len(found) < 0.3
    noted = [s for s, t in zip(found, TASKS, strict=True) if "note" in t.question]
    misread = sum("This is not the note of" in str(steps) for steps in noted)
    assert 0.15 < misread / len(noted) < 0.35


def test_the_data_set_shows_the_team() -> None:
    shown = WORLD.shown("team", 60, DIALECT, [])
    made = WORLD.demonstrations("team", 60, DIALECT, [])
    again = [encode_demonstration(*each, DIALECT, []) for each in shown]
    assert [t.ids for t in made] == [t.ids for t in again]
    assert all(trajectory.well_formed for trajectory in made)
    kinds = Counter(task.meta["kind"] for task, _ in shown)
    assert kinds.keys() == {"head", "program", "note", "given"}
    policy = "".join(s.text for t in made for s in t.segments if s.author is Author.POLICY)
    assert "tool_effectiveness : Poor" in policy
    assert "The score this time is:1" in policy
    with pytest.raises(UserError, match="cannot filter its data set 'base'"):
        WORLD.shown("base", 1, DIALECT, [])
