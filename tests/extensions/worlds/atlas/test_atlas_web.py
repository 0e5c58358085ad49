"""Atlas as a web site: demonstrations read the same texts as the web tools."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from fieldcraft.config.choices import ToolConfig
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.data.world import make_world
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import encode_demonstration
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import ToolEnvironment, run_rollout
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.worlds.atlas.facts import Atlas, Route
from fieldcraft.extensions.worlds.atlas.generation import regenerate_untaught
from fieldcraft.extensions.worlds.atlas.oracle import (
    AtlasOracle,
    iterate_decisions,
    make_demonstration,
)
from fieldcraft.extensions.worlds.atlas.reading import (
    OPEN_THOUGHT,
    SEARCH_THOUGHT,
    find_urls,
    make_observation,
)
from fieldcraft.extensions.worlds.atlas.team import (
    make_single_agent_demonstration,
    make_team_demonstration,
)
from fieldcraft.extensions.worlds.atlas.world import AtlasWorld
from fieldcraft.extensions.worlds.pages import make_page_url, parse_page_title
from fieldcraft.extensions.worlds.site import open_site
from fieldcraft.tools.factory import apply_tool_config, make_tool
from fieldcraft.train.scratch import make_tokenizer
from fieldcraft.types import (
    Answer,
    Author,
    DemoStep,
    Observation,
    Task,
    Thought,
    ToolCall,
    UserError,
)

pytest.importorskip("trafilatura", reason="needs the extra web")

SITE = "http://atlas"
WORLD = AtlasWorld(seed=0, people=60, site=SITE)
FACTS = WORLD.atlas
TAGS = make_dialect("afm-web", make_tokenizer([], WORLD.syllables), "").tags
TOKENIZER = make_tokenizer(WORLD.tokenizer_texts(TAGS), WORLD.syllables)
DIALECT = make_dialect("afm-web", TOKENIZER, "")


@pytest.fixture(scope="module")
def tools() -> list[Any]:
    """Make the tools of a recipe, with the site in this process."""
    sites = open_site(WORLD)
    search = make_tool("web_search", {"provider": "searxng", "url": SITE, "top_k": 1}, sites)
    renamed = apply_tool_config(search, ToolConfig(name="web_search", names="search"))
    return [renamed, make_tool("crawl_page", {"interval_seconds": 0}, sites)]


def paths(count: int, world: Atlas = FACTS) -> list[Route]:
    rng = random.Random(3)
    return [world.sample_path(rng, ["train", "taught"], 1 + i % 3) for i in range(count)]


def chains(world: Atlas = FACTS, count: int = 60) -> Iterator[list[DemoStep]]:
    """Return chains of a team with and without mistakes, of a single agent, and of the oracle."""
    for number, path in enumerate(paths(count, world)):
        yield make_team_demonstration(world, path, random.Random(number), 0.0)
        yield make_team_demonstration(world, path, random.Random(number), 1.0)
        yield make_single_agent_demonstration(world, path, random.Random(number), 0.5)
        yield make_demonstration(world, path)


def test_every_page_and_every_result_is_what_the_tools_read(tools: Sequence[Any]) -> None:
    """Texts read by HTTP in this process are equal byte for byte, even at a moved address."""
    search, crawl = tools

    async def read(tool: Any, **arguments: str) -> str:
        async with tool.open(Task("t", "Why?", ("so",))) as opened:
            return str(await opened(**arguments))

    async def compare() -> None:
        for name in FACTS.entities:
            known = make_observation(FACTS, ToolCall("search", {"query": name})).text
            assert await read(search, query=name) == known
            for folder in ("wiki", "moved"):
                url = make_page_url(SITE, name, folder)
                known = make_observation(FACTS, ToolCall("crawl_page", {"url": url})).text
                assert await read(crawl, url=url) == known

    asyncio.run(compare())


def test_a_played_demonstration_gives_the_same_tokens(tools: Sequence[Any]) -> None:
    where = ToolEnvironment(
        DIALECT, tools, BudgetConfig(max_calls=9, max_turn_tokens=512, max_context_tokens=4096)
    )
    for number, path in enumerate(paths(30)):
        task = FACTS.make_task(path, "train")
        steps = make_team_demonstration(FACTS, path, random.Random(number), 0.5)
        demonstration = encode_demonstration(task, steps, DIALECT, [tool.schema for tool in tools])
        turns = [s.text for s in demonstration.segments if s.author is Author.POLICY]
        policy = Policy(engine=ScriptedEngine(TOKENIZER, turns))
        played = asyncio.run(run_rollout(task, policy, where, "key"))
        assert played.ids == demonstration.ids
        assert (played.answer, played.well_formed) == (task.answers[0], True)


def test_one_chain_literally() -> None:
    """The second page is known from a link of the first, so it is not searched for."""
    assert make_demonstration(FACTS, ("Sker Bil", "mentor", "employer")) == [
        Thought("I must search."),
        ToolCall("search", {"query": "Sker Bil"}),
        Observation("1. Sker Bil\nhttp://atlas/wiki/Sker_Bil\nSker Bil is a person …"),
        Thought("I open Sker Bil."),
        ToolCall("crawl_page", {"url": "http://atlas/wiki/Sker_Bil"}),
        Observation(
            "http://atlas/wiki/Sker_Bil\n\nSker Bil is a person with the employer GonGrun, the"
            " birthplace ZelHel, the mentor Spor Trir.\nThis page is a part of the encyclopedia of"
            " one world.\n\nLinks:\n[GonGrun](http://atlas/wiki/GonGrun)\n"
            "[ZelHel](http://atlas/wiki/ZelHel)\n[Spor Trir](http://atlas/wiki/Spor_Trir)\n"
            "[All pages](http://atlas/)"
        ),
        Thought("Sker Bil has the mentor Spor Trir. I open Spor Trir."),
        ToolCall("crawl_page", {"url": "http://atlas/wiki/Spor_Trir"}),
        Observation(
            "http://atlas/wiki/Spor_Trir\n\nSpor Trir is a person with the employer SkurTrol, the"
            " birthplace BralMor, the mentor Hin Tel.\nThis page is a part of the encyclopedia of"
            " one world.\n\nLinks:\n[SkurTrol](http://atlas/moved/SkurTrol)\n"
            "[BralMor](http://atlas/wiki/BralMor)\n[Hin Tel](http://atlas/wiki/Hin_Tel)\n"
            "[All pages](http://atlas/)"
        ),
        Thought("Spor Trir has the employer SkurTrol."),
        Answer("SkurTrol"),
    ]


@pytest.mark.parametrize("dealt_anew", [False, True])
def test_agents_open_only_addresses_that_they_have_met(dealt_anew: bool) -> None:
    world = regenerate_untaught(FACTS, random.Random(1)) if dealt_anew else FACTS
    opened = 0
    for steps in chains(world):
        known_urls: set[str] = set()
        for step in steps:
            if isinstance(step, Observation):
                known_urls |= find_urls(step.text)
            if isinstance(step, ToolCall) and step.tool == "crawl_page":
                assert step.arguments["url"] in known_urls
                opened += 1
    assert opened > 200


def test_a_link_saves_a_search() -> None:
    searches = reads = 0
    for steps in chains():
        calls = [step.tool for step in steps if isinstance(step, ToolCall)]
        searches += calls.count("search")
        reads += calls.count("crawl_page")
    assert 0.6 * reads < searches < reads


def test_the_oracle_continues_every_beginning_of_its_demonstration() -> None:
    oracle = AtlasOracle(FACTS)
    for path in paths(20):
        task = FACTS.make_task(path, "train")
        steps: list[DemoStep] = []
        while not steps or not isinstance(steps[-1], Answer):
            steps.append(oracle.next_step(task, steps))
        read = {s.arguments.get("url") for s in steps if isinstance(s, ToolCall)} - {None}
        assert len(read) == oracle.optimal_calls(task)  # pages; a search only finds their address
        for thought, action in pairwise(steps):
            if isinstance(action, ToolCall):
                opened = parse_page_title(SITE, action.arguments.get("url", ""))
                assert thought == Thought(OPEN_THOUGHT.format(opened) if opened else SEARCH_THOUGHT)


def test_decisions_search_for_what_has_no_known_address() -> None:
    chosen = [
        d.chosen for path in paths(40) for d in iterate_decisions(FACTS, path, random.Random(0))
    ]
    acting = [step.tool for steps in chosen for step in steps if isinstance(step, ToolCall)]
    assert {"search", "crawl_page"} == set(acting)


def test_what_is_no_page_of_an_entity_is_not_known() -> None:
    for url in (
        f"{SITE}/archive/X",
        f"{SITE}/",
        make_page_url(SITE, "Nobody"),
        "http://other/wiki/X",
    ):
        with pytest.raises(ValueError, match="does not know what ToolCall"):
            make_observation(FACTS, ToolCall("crawl_page", {"url": url}))


def test_the_word_before_a_name_in_an_address_is_one_token() -> None:
    assert len(TOKENIZER.encode("http://atlas/wiki/")) == 1
    assert len(TOKENIZER.encode("http://atlas/moved/")) == 1


def test_a_world_without_an_address_has_no_site() -> None:
    assert not open_site(AtlasWorld(seed=0, people=60))
    with pytest.raises(UserError, match=r"setting 'site' of the world 'atlas' is wrong"):
        make_world("atlas", {"site": "atlas"}, 0)


def test_a_recipe_cannot_set_the_sites_of_a_tool() -> None:
    with pytest.raises(UserError, match="has no setting 'sites'"):
        make_tool("crawl_page", {"sites": {}})
