"""The cheaper tool on Atlas's site: a search shows one fact of an article, its page all facts."""

import random
from itertools import product

import pytest

from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.extensions.worlds.atlas.facts import RELATIONS, Route
from fieldcraft.extensions.worlds.atlas.oracle import make_wasteful_demonstration
from fieldcraft.extensions.worlds.atlas.reading import (
    enumerate_tool_mixes,
    get_snippet_facts,
    make_observation,
)
from fieldcraft.extensions.worlds.atlas.world import AtlasWorld
from fieldcraft.extensions.worlds.pages import make_snippet
from fieldcraft.records.costs import CostModel
from fieldcraft.train.scratch import make_tokenizer
from fieldcraft.types import Observation, ToolCall, UserError

pytest.importorskip("trafilatura", reason="needs the extra web")
WORLD = AtlasWorld(seed=0, people=60, site="http://atlas", snippet_parts=1)
FACTS = WORLD.atlas
COSTS = CostModel({"web_search": 1.0, "crawl_page": 4.0})


def untaught(kind: str) -> str:
    return FACTS.by_kind[kind, "heldout"][0]


def test_snippets_are_whole_parts() -> None:
    text = "Ann Bo is a person with the employer CidDo, the mentor El Fa, the birthplace Gan."
    assert make_snippet(text, 1) == "Ann Bo is a person with the employer CidDo …"
    assert make_snippet(text, 2) == "Ann Bo is a person with the employer CidDo, the mentor El Fa …"
    assert make_snippet(text, 3) == make_snippet(text, 9) == text


@pytest.mark.parametrize("kind", RELATIONS)
def test_a_search_shows_the_first_fact_of_each_kind(kind: str) -> None:
    assert get_snippet_facts(FACTS, untaught(kind)) == {
        (untaught(kind), next(iter(RELATIONS[kind])))
    }


def test_a_quarter_of_an_article_shows_nothing() -> None:
    bare = AtlasWorld(seed=0, people=60, site="http://atlas").atlas
    assert not any(get_snippet_facts(bare, name) for name in bare.entities)


def test_the_ways_of_single_facts_by_hand() -> None:
    person = untaught("person")
    assert enumerate_tool_mixes(FACTS, (person, "employer")) == [
        {"web_search": 0, "crawl_page": 1},
        {"web_search": 1, "crawl_page": 0},
    ]
    assert enumerate_tool_mixes(FACTS, (person, "mentor")) == [{"web_search": 0, "crawl_page": 1}]
    taught = FACTS.by_kind["person", "taught"][0]
    assert enumerate_tool_mixes(FACTS, (taught, "mentor")) == [{"web_search": 0, "crawl_page": 0}]


def brute_force(path: Route) -> float:
    """Return the least cost over all sets of searches and pages of the entities of a path."""
    needed = {(s, r) for s, r, _ in FACTS.trace_path(path) if FACTS.entities[s].region != "taught"}
    subjects = list({s for s, _, _ in FACTS.trace_path(path)})
    sums = []
    for uses in product((0, 1, 2, 3), repeat=len(subjects)):
        read = set[tuple[str, str]]()
        for subject, use in zip(subjects, uses, strict=True):
            read |= get_snippet_facts(FACTS, subject) if use & 1 else set()
            read |= FACTS.get_article_facts(subject) if use & 2 else set()
        if needed <= read:
            sums.append(sum((use & 1) + 4 * (use >> 1) for use in uses))
    return min(sums)


def test_the_optimum_is_that_of_all_sets_of_calls() -> None:
    tasks = WORLD.evaluation_questions({"mixed": 60, "heldout": 40, "known": 10})
    for task in tasks:
        assert COSTS.find_optimal_cost(task.meta) == brute_force(tuple(task.meta["path"]))
        assert min(sum(way.values()) for way in task.meta["ways"]) == task.meta["calls_optimal"]
    assert len({COSTS.find_optimal_cost(task.meta) for task in tasks}) > 5


def test_the_wasteful_teacher_goes_both_ways_and_reads_all_that_it_says() -> None:
    first = {"search": 0, "crawl_page": 0}
    rng = random.Random(0)
    for task in WORLD.evaluation_questions({"heldout": 100}):
        steps = make_wasteful_demonstration(FACTS, tuple(task.meta["path"]), rng)
        calls = [step for step in steps if isinstance(step, ToolCall)]
        first[calls[0].tool] += 1
        observed = [step for step in steps if isinstance(step, Observation)]
        assert observed == [make_observation(FACTS, call) for call in calls]
        assert steps[-1].text == task.answers[0]  # type: ignore[union-attr]
    assert min(first.values()) > 30


def test_its_demonstrations_obey_the_grammar_of_web_agents() -> None:
    tags = make_dialect("afm-web", make_tokenizer([], WORLD.syllables), "").tags
    tokenizer = make_tokenizer(WORLD.tokenizer_texts(tags), WORLD.syllables)
    found = WORLD.encoded(
        "wasteful", 40, DemonstrationEncoder(make_dialect("afm-web", tokenizer, ""))
    )
    assert all(each.well_formed for each in found)


def test_snippets_need_a_site() -> None:
    with pytest.raises(UserError, match=r"requires world\.site: set it"):
        AtlasWorld(seed=0, people=60, snippet_parts=1)
