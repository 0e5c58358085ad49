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

from fieldcraft.data.world import make_world
from fieldcraft.dialects import make_dialect, resolve_dialect
from fieldcraft.dialects.afm_grades import parse_grades, parse_score
from fieldcraft.dialects.encoding import DemonstrationEncoder, encode_demonstration
from fieldcraft.extensions.curation.filters import Demonstration
from fieldcraft.extensions.worlds.abacus.instructions import Instruction, InstructionStep
from fieldcraft.extensions.worlds.abacus.questions import SPLITS
from fieldcraft.extensions.worlds.abacus.team import (
    draw_wrong_program,
    draw_wrong_result,
    make_team_demonstration,
)
from fieldcraft.train.scratch import make_tokenizer
from fieldcraft.types import (
    Answer,
    Author,
    DemoStep,
    Observation,
    Status,
    Task,
    Thought,
    ThoughtRole,
    ToolCall,
    UserError,
)

WORLD = make_world("abacus", {"notes": 60, "heldout_notes": 30, "mistakes": 1.0}, 7)
TRAINED = WORLD.training_questions(400)
TASKS = [*TRAINED, *WORLD.evaluation_questions(dict.fromkeys(SPLITS, 60))]
TEXTS = WORLD.tokenizer_texts(resolve_dialect("afm-code").tags)
DIALECT = make_dialect("afm-code", make_tokenizer(TEXTS, WORLD.syllables), "")
LONGEST = 5  # calls: a wrong note, a note given to another person, the note, and two programs


def texts(steps: Sequence[DemoStep], role: ThoughtRole) -> list[str]:
    return [step.text for step in steps if isinstance(step, Thought) and step.role is role]


def grades(steps: Sequence[DemoStep]) -> list[str]:
    return [parse_grades(text)["tool_effectiveness"] for text in texts(steps, ThoughtRole.REFLECT)]


def scores(steps: Sequence[DemoStep]) -> list[int | None]:
    return [parse_score(text) for text in texts(steps, ThoughtRole.CHECK)]


@given(st.sampled_from(TASKS), st.integers(), st.floats(0, 1))
def test_every_chain_is_what_the_dialect_writes(task: Task, seed: int, mistakes: float) -> None:
    notebook = (WORLD.train_abacus if task.meta["split"] == "train" else WORLD.test_abacus).notebook
    steps = make_team_demonstration(notebook, task, random.Random(seed), mistakes)
    encoded = encode_demonstration(task, steps, DIALECT, [])
    assert (encoded.status, encoded.well_formed) == (Status.ANSWERED, True)
    assert encoded.answer == task.answers[0]
    assert [call.arguments for call in encoded.calls] == [
        step.arguments for step in steps if isinstance(step, ToolCall)
    ]
    assert DIALECT.tokenizer.decode(encoded.ids) == "".join(s.text for s in encoded.segments)
    assert len(texts(steps, ThoughtRole.PLAN)) == 1
    assert len(encoded.calls) <= LONGEST


def test_what_programs_print_is_what_they_print() -> None:
    """Every program of every chain, wrong ones included, is actually executed."""
    scope: dict[str, object] = {}
    exec(WORLD.files()["notes.py"], scope)
    ran = 0
    for number, task in enumerate(TASKS):
        for chain in (WORLD.team_demonstration, WORLD.single_agent_demonstration):
            for action, observed in pairwise(chain(task, random.Random(number))):
                if not isinstance(action, ToolCall):
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
        steps = calm.team_demonstration(task, random.Random(0))
        assert sum(isinstance(s, ToolCall) for s in steps) == task.meta["calls_optimal"]
        assert "poor" not in grades(steps)
        assert scores(steps) == [4]
        lone = calm.single_agent_demonstration(task, random.Random(0))
        assert lone[-1] == Answer(task.answers[0])
        assert not any(isinstance(s, Thought) and s.role is not ThoughtRole.THINK for s in lone)


def test_every_kind_of_mistake_is_seen_and_repaired() -> None:
    for number, task in enumerate(TASKS):
        steps = WORLD.team_demonstration(task, random.Random(number))
        noted, large = task.meta["kind"] in ("note", "given"), task.meta["kind"] != "head"
        computed = task.meta["calls_optimal"] > {"note": 1, "given": 2}.get(task.meta["kind"], 0)
        assert grades(steps).count("poor") == noted + computed
        assert scores(steps) == [1, 4]
        suggested = texts(steps, ThoughtRole.SUGGEST)
        assert suggested[0] != suggested[1] == task.answers[0]
        assert steps[-1] == Answer(task.answers[0])
        assert Demonstration(task, steps).has_repaired_error
        codes = [step.arguments["code"] for step in steps if isinstance(step, ToolCall)]
        assert len(set(codes)) == len(codes)  # no program is repeated
        assert codes or not large  # a mental sum that failed its check is computed


def test_the_single_agent_sees_none_of_its_mistakes() -> None:
    wrong = [WORLD.single_agent_demonstration(t, random.Random(n))[-1] for n, t in enumerate(TASKS)]
    right = sum(answer == Answer(t.answers[0]) for answer, t in zip(wrong, TASKS, strict=True))
    assert right == 0  # each chain suggests a number along the way


def test_mistakes_of_training_name_nobody_of_an_evaluation() -> None:
    held = {name for names in WORLD.test_abacus.names.values() for name in names}
    for number, task in enumerate(TRAINED):
        for chain in (WORLD.team_demonstration, WORLD.single_agent_demonstration):
            named = re.findall(r"[A-Z]\w* [A-Z]\w*", str(chain(task, random.Random(number))))
            assert not held & set(named)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (
            (InstructionStep("+", 377), InstructionStep("*", 52)),
            {
                ("print(4821 + 377 + 52)", "5250", "It must multiply by 52."),
                ("print(4821 + 377)", "5198", "It does not multiply by 52."),
                ("print(4821 + 377 * 52)", "24425", "The parentheses are missing."),
            },
        ),
        (
            (InstructionStep("-", 1377),),
            {("print(4821 + 1377)", "6198", "It must take away 1377.")},
        ),
    ],
)
def test_wrong_programs(
    changes: tuple[InstructionStep, ...], found: set[tuple[str, str, str]]
) -> None:
    instruction = Instruction(4821, changes)
    programs = [draw_wrong_program(instruction, random.Random(n)) for n in range(30)]
    assert {(wrong.code, wrong.output, wrong.review) for wrong in programs} == found
    numbers = {"4821", "5198", "377", "52"} if len(changes) > 1 else {"4821", "1377"}
    assert {draw_wrong_result(instruction, random.Random(n)) for n in range(60)} == numbers


def test_mistakes_come_at_the_set_rate_and_follow_from_the_key() -> None:
    few = make_world("abacus", {"notes": 60, "heldout_notes": 30, "mistakes": 0.25}, 7)
    found = [few.team_demonstration(task, random.Random(n)) for n, task in enumerate(TASKS)]
    assert found == [few.team_demonstration(task, random.Random(n)) for n, task in enumerate(TASKS)]
    assert 0.2 < sum(len(scores(steps)) > 1 for steps in found) / len(found) < 0.3
    noted = [s for s, t in zip(found, TASKS, strict=True) if "note" in t.question]
    misread = sum("This is not the note of" in str(steps) for steps in noted)
    assert 0.15 < misread / len(noted) < 0.35


def test_the_data_set_shows_the_team() -> None:
    demonstrations = WORLD.demonstrations("team", 60)
    trajectories = WORLD.encoded("team", 60, DemonstrationEncoder(DIALECT))
    again = [encode_demonstration(*each, DIALECT, []) for each in demonstrations]
    assert [t.ids for t in trajectories] == [t.ids for t in again]
    assert all(trajectory.well_formed for trajectory in trajectories)
    kinds = Counter(task.meta["kind"] for task, _ in demonstrations)
    assert kinds.keys() == {"head", "program", "note", "given"}
    policy = "".join(s.text for t in trajectories for s in t.segments if s.author is Author.POLICY)
    assert "tool_effectiveness : Poor" in policy
    assert "The score this time is:1" in policy
    with pytest.raises(UserError, match="does not support filters for its dataset 'base'"):
        WORLD.demonstrations("base", 1)
