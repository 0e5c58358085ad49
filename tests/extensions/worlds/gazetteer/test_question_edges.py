"""Questions at the edges: namesakes of other kinds, sides without regions, guesses, a program."""

import asyncio
import random
from types import SimpleNamespace

import pytest

from fieldcraft.extensions.worlds.gazetteer.geonames import REACHED_KINDS
from fieldcraft.extensions.worlds.gazetteer.oracle import iterate_decisions, make_guess
from fieldcraft.extensions.worlds.gazetteer.program import QuestionProgram
from fieldcraft.extensions.worlds.gazetteer.question_sampling import QuestionSampler
from fieldcraft.extensions.worlds.gazetteer.questions import (
    ChainQuestion,
    CommonNeighbourQuestion,
    ComparisonQuestion,
    CountQuestion,
    GazetteerQuestion,
)
from fieldcraft.extensions.worlds.gazetteer.wordings import NUM_TRAINED_WORDINGS
from fieldcraft.extensions.worlds.gazetteer.world import GazetteerWorld
from fieldcraft.rewards.answers import exact_match
from fieldcraft.types import Answer, Thought, UserError
from gazetteer_parts import some_known


def draw(world: GazetteerWorld, count: int) -> list[GazetteerQuestion]:
    rng = random.Random(0)
    sampler = QuestionSampler(world.gazetteer, heldout=True)
    return list(sampler.draw_distinct(rng, count, sampler.draw_any, lambda _: True))


def test_a_chain_reaches_places_of_the_kind_that_its_relations_name() -> None:
    """The capital of the USA has an ambiguous name and is left out; Washington is a state."""
    world = GazetteerWorld(0).gazetteer
    for start in world.places:
        for chain in world.iterate_chains(start, 3):
            *reached, _ = ChainQuestion(world, start, chain).facts()[1:] or [(start, "")]
            for (name, _), relation in zip(reached, chain, strict=False):
                assert world.places[name].kind == REACHED_KINDS[relation], (start, chain)
    assert ("country", "capital", "largest_city") not in set(world.iterate_chains("Chicago", 3))
    capital = world.places["United States"].facts["capital"]
    assert "WA" not in capital.accepted


@pytest.mark.parametrize("seed", [5, 8, 22, 77, 261])
def test_a_side_without_regions_has_questions_all_the_same(seed: int) -> None:
    """Only seven countries have regions: with these seeds one side has none, or those of one."""
    world = GazetteerWorld(seed)
    splits = {"heldout": 20, "four_hops": 20, "unseen_chains": 5}
    assert len(world.evaluation_questions(splits)) >= 40
    gazetteer, rng = world.gazetteer, random.Random(0)
    for heldout in (False, True):
        sampler = QuestionSampler(gazetteer, heldout=heldout)
        for question in sampler.draw_distinct(rng, 60, sampler.draw_any, lambda _: True):
            assert isinstance(make_guess(gazetteer, question, rng)[-1], Answer)
            assert list(iterate_decisions(gazetteer, world.corpus, question, rng))


@pytest.mark.parametrize("heldout", [0.001, 0.999])
def test_no_side_is_empty(heldout: float) -> None:
    with pytest.raises(UserError, match=rf"world\.heldout={heldout} holds out \d+ of \d+"):
        GazetteerWorld(0, heldout=heldout)


def test_a_guess_states_what_is_known_and_answers_in_kind() -> None:
    world = some_known().gazetteer
    rng = random.Random(0)
    for question in draw(some_known(), 300):
        *thoughts, answer = make_guess(world, question, rng)
        assert isinstance(answer, Answer)
        assert all(isinstance(step, Thought) for step in thoughts)
        if all(map(world.is_known, question.facts())):
            assert exact_match(answer.text, question.answer().accepted) == 1.0
        elif isinstance(question, ComparisonQuestion):
            assert answer.text in question.compared_places()
        elif isinstance(question, CountQuestion):
            assert answer.text.isdigit()
        elif isinstance(question, CommonNeighbourQuestion):
            assert world.places[answer.text].kind == "country"
        else:
            assert answer.text != question.answer().text


def test_a_program_that_reads_all_facts_understands_every_trained_wording_of_a_chain() -> None:
    world = some_known().gazetteer

    async def read_fact(_: object, name: str, relation: str) -> str | None:
        return world.get_value((name, relation)).text if world.has_fact(name, relation) else None

    program = QuestionProgram(read_fact)
    for question in [q for q in draw(some_known(), 300) if isinstance(q, ChainQuestion)]:
        for wording in range(NUM_TRAINED_WORDINGS):
            found: list[Answer] = []
            task = question.make_task("heldout", wording)
            session = SimpleNamespace(trajectory=SimpleNamespace(task=task), finish=found.append)
            asyncio.run(program.run(session))  # type: ignore[arg-type]
            assert found, task.question
            assert exact_match(found[0].text, task.answers) == 1.0, task.question
