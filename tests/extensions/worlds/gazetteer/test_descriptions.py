"""Open-ended questions of the gazetteer, and the criteria that grade descriptions."""

import pytest

from fieldcraft.extensions.worlds.gazetteer.descriptions import (
    GazetteerDescriptions,
    has_no_wrong_number,
    has_two_sentences,
    make_description_task,
    names_its_place,
    states_two_facts,
)
from fieldcraft.types import Answer, ToolCall, Trajectory
from gazetteer_parts import number, place

LYRA = place("Lyra", "country", "Lyra", continent="Europe", capital="Vega", population=number(1200))
CRITERIA = (has_two_sentences, names_its_place, states_two_facts, has_no_wrong_number)


@pytest.mark.parametrize(
    ("answer", "scores"),
    [
        ("Lyra is a country in Europe. The capital of Lyra is Vega.", (1, 1, 1, 1)),
        ("LYRA lies in europe! It has 1,200 inhabitants.", (1, 1, 1, 1)),
        ("Lyra is a country in Europe.", (0, 1, 0.5, 1)),
        ("It has 1,300 inhabitants. It is large.", (1, 0, 0, 0)),
        ("Lyra covers 5.5 things. Europeans live in Lyran towns.", (1, 1, 0, 0)),
        ("", (0, 0, 0, 0)),
        (None, (0, 0, 0, 0)),
    ],
)
def test_criteria_of_descriptions(answer: str | None, scores: tuple[float, ...]) -> None:
    trajectory = Trajectory(make_description_task(LYRA, "heldout"), answer=answer)
    assert tuple(criterion(trajectory) for criterion in CRITERIA) == scores


def test_a_question_has_the_facts_of_its_place_and_no_accepted_answer() -> None:
    task = make_description_task(LYRA, "heldout")
    assert task.question == "Describe the country Lyra in two sentences."
    assert task.answers == ()
    assert task.meta["graded_by"] == "rubric"
    assert task.meta["facts"] == {
        "continent": ["Europe"],
        "capital": ["Vega"],
        "population": ["1,200"],
    }


@pytest.fixture(scope="module")
def world() -> GazetteerDescriptions:
    return GazetteerDescriptions(0, cities=60)


def test_demonstrations_meet_all_criteria(world: GazetteerDescriptions) -> None:
    for task, steps in world.demonstrations("demonstrations", 40):
        call, answer = steps[1], steps[-1]
        assert isinstance(call, ToolCall)
        assert isinstance(answer, Answer)
        assert call.arguments["query"].startswith(task.meta["place"])
        trajectory = Trajectory(task, answer=answer.text)
        assert [criterion(trajectory) for criterion in CRITERIA] == [1, 1, 1, 1], answer


def test_places_of_an_evaluation_are_never_trained(world: GazetteerDescriptions) -> None:
    trained = {task.question for task in world.training_questions(10_000)}
    evaluated = [task.question for task in world.evaluation_questions({"heldout": 30})]
    assert len(set(evaluated)) == 30
    assert trained.isdisjoint(evaluated)
    again = GazetteerDescriptions(0, cities=60).evaluation_questions({"heldout": 30})
    assert [task.question for task in again] == evaluated
