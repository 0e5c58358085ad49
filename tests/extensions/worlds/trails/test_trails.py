"""Walks, which require folding if the policy knows only its context."""

import asyncio
import random
import re
from collections.abc import Sequence

import pytest

from fieldcraft.concurrency import run_concurrently
from fieldcraft.dialects import make_dialect, resolve_dialect
from fieldcraft.dialects.base import encode_policy_text
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.environments.tool_environment import ToolEnvironment, run_rollout
from fieldcraft.environments.turns import Policy
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.extensions.search.index import build_index
from fieldcraft.extensions.search.tool import SearchTool
from fieldcraft.extensions.worlds.trails.world import (
    LONG_STEPS,
    SHORT_STEPS,
    TrailMap,
    TrailsWorld,
    Walk,
    draw_map,
    draw_walks,
    make_folded_demonstration,
    make_unfolded_demonstration,
)
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.chains import count_max_chain_tokens, split_chains
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.sampling import Completion, SamplingParams, StopReason
from fieldcraft.train.scratch import iter_tool_texts, make_tokenizer
from fieldcraft.types import (
    Author,
    Dialect,
    Status,
    Task,
    Thought,
    ThoughtRole,
    Tokenizer,
    Trajectory,
)

WORLD = TrailsWorld(0)
RECIPE = load_recipe("fold-mini", [])


class Reader:
    """The optimal policy without a memory: it reads its context and writes the next turn."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        text = self._turn(self.tokenizer.decode(ids))
        ids_out, reason = encode_policy_text(self.tokenizer, text), StopReason.STOP
        if not text.endswith(sampling.stop):
            ids_out, reason = [*ids_out, self.tokenizer.eos_token_id], StopReason.EOS
        if len(ids_out) > sampling.max_tokens:
            ids_out, reason = ids_out[: sampling.max_tokens], StopReason.LENGTH
        return Completion(ids_out, [0.0] * len(ids_out), self.tokenizer.decode(ids_out), reason)

    def release(self, session: str) -> None: ...

    def _turn(self, text: str) -> str:
        [(steps, direction, start)] = re.findall(r"Go (\d) times (\w+) from (\w+)\.", text)
        steps_left = int(re.findall(r"(\d) to go\.", f"{steps} to go.{text}")[-1])
        read = re.findall(rf"{direction.title()} of \w+ lies \w+\.", text)
        if text.endswith("<think>\n"):  # the start of a chain
            here = read[-1].split()[-1][:-1] if read else start
            return self._go_on(here, steps_left, "" if read else f"{steps_left} to go.\n")
        message = f"{read[-1]} {steps_left - 1} to go.\n"
        if text.endswith("<summary>\n"):
            return f"{message}</summary>"
        return self._go_on(read[-1].split()[-1][:-1], steps_left - 1, message)

    def _go_on(self, here: str, steps_left: int, message: str) -> str:
        if steps_left:
            return f"{message}<begin_search> {here} </end_search>"
        return f"{message}</think>\n\n\\boxed{{{here}}}"


@pytest.fixture(scope="module")
def dialect() -> Dialect:
    tags = ("<think>", "</think>", "<begin_search>", "</end_search>")
    results = ("<search_result>", "</search_result>")
    texts = WORLD.tokenizer_texts((*tags, *results))
    return make_dialect(
        RECIPE.dialect,
        make_tokenizer(texts, WORLD.syllables),
        RECIPE.instruction,
        summary_instruction=RECIPE.budget.fold.prompt,
    )


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> SearchTool:
    folder = tmp_path_factory.mktemp("trails")
    write_json_lines(folder / "corpus.jsonl", WORLD.passages())
    return SearchTool(build_index(folder / "corpus.jsonl", folder / "index"), topk=1)


def go(tasks: Sequence[Task], dialect: Dialect, tool: SearchTool, folds: bool) -> list[Trajectory]:
    budget = RECIPE.budget if folds else RECIPE.budget.model_copy(update={"fold": None})
    env = ToolEnvironment(dialect, [tool], budget)
    policy = Policy(engine=Reader(dialect.tokenizer))
    jobs = [(task, task.id) for task in tasks]
    found = asyncio.run(run_concurrently(jobs, lambda t, k: run_rollout(t, policy, env, k), 8))
    for trajectory in found:
        asyncio.run(Rubric([(ExactMatch(), 1.0)]).score([trajectory]))
    return found


def test_long_walks_are_gone_with_folding_and_not_without(
    dialect: Dialect, tool: SearchTool
) -> None:
    tasks = WORLD.evaluation_questions({"heldout": 25})
    found = go(tasks, dialect, tool, folds=True)
    assert [t.error for t in found if t.error] == []
    assert all(t.is_correct and t.well_formed for t in found)
    assert min(len(t.folds) for t in found) >= 2
    assert max(map(count_max_chain_tokens, found)) <= 240 < min(len(t.ids) for t in found)
    entry = summarise_evaluation(found)  # counted per walk, regardless of the number of its chains
    assert (entry["n"], entry["em"]) == (25, 1.0)
    assert entry["calls_mean"] == entry["calls_optimal_mean"]
    assert entry["folds_mean"] == sum(len(t.folds) for t in found) / 25
    token_count = sum(len(s.ids) for t in found for s in t.segments if s.author is Author.POLICY)
    assert entry["tokens_mean"] == token_count / 25

    bare = go(tasks, dialect, tool, folds=False)
    assert {t.status for t in bare} == {Status.TRUNCATED}
    assert not any(t.is_correct for t in bare)


def test_short_walks_need_no_folding(dialect: Dialect, tool: SearchTool) -> None:
    tasks = WORLD.evaluation_questions({"short": 12})
    assert all(t.is_correct for t in go(tasks, dialect, tool, folds=False))
    assert all(t.is_correct for t in go(tasks, dialect, tool, folds=True))


def test_demonstrations_fold_as_rollouts_do(dialect: Dialect) -> None:
    demonstrations = WORLD.encoded("folded", 150, DemonstrationEncoder(dialect))
    assert all(t.well_formed and t.answer in t.task.answers for t in demonstrations)
    assert max(map(count_max_chain_tokens, demonstrations)) <= 240
    assert {t.task.meta["hops"] for t in demonstrations} == set(range(1, 10))
    ends = {part[-1].text for t in demonstrations for part in split_chains(t)[:-1]}
    assert all(re.fullmatch(r"\w+ of \w+ lies \w+\. \d to go\.\n</summary>", end) for end in ends)
    read = [
        sum(s.author is Author.TOOL for s in part)
        for t in demonstrations
        for part in split_chains(t)
    ]
    assert set(read) == {0, 1, 2}

    whole = WORLD.encoded("demonstrations", 60, DemonstrationEncoder(dialect))
    assert not any(t.folds for t in whole)
    assert max(map(count_max_chain_tokens, whole)) <= 240
    assert all(t.well_formed for t in whole)


def test_a_walk_in_one_chain_and_with_its_folds() -> None:
    trail_map = TrailMap(
        {
            (place, direction): other
            for place, others in {"A": "BCDE", "B": "CADE", "C": "ABDE"}.items()
            for direction, other in zip(("north", "east", "south", "west"), others, strict=True)
        }
    )
    walk = Walk("A", "north", 2)
    assert trail_map.trace_walk(walk) == ["A", "B", "C"]
    assert trail_map.render_article("B") == (
        "North of B lies C. East of B lies A. South of B lies D. West of B lies E."
    )
    thoughts = [
        step
        for step in make_unfolded_demonstration(trail_map, walk, random.Random(0))
        if isinstance(step, Thought)
    ]
    assert thoughts == [
        Thought("2 to go."),
        Thought("North of A lies B. 1 to go."),
        Thought("North of B lies C. 0 to go."),
    ]
    roles = set()
    for seed in range(20):
        steps = make_folded_demonstration(trail_map, walk, random.Random(seed))
        assert [getattr(s, "text", "") for s in steps] == [
            getattr(s, "text", "")
            for s in make_unfolded_demonstration(trail_map, walk, random.Random(0))
        ]
        roles.add(tuple(s.role for s in steps if isinstance(s, Thought)))
    think, fold = ThoughtRole.THINK, ThoughtRole.SUMMARY
    # a chain reads at most two articles, so a fold follows the second one at the latest
    assert roles == {(think, fold, think), (think, fold, fold), (think, think, fold)}


def test_a_careless_teacher_forgets_how_far_it_is(dialect: Dialect) -> None:
    demonstrations = WORLD.encoded("careless", 400, DemonstrationEncoder(dialect))
    assert all(t.well_formed for t in demonstrations)
    assert max(map(count_max_chain_tokens, demonstrations)) <= 240
    assert max(len(t.calls) for t in demonstrations) <= 10

    def forgets(t: Trajectory) -> bool:
        return any("to go" not in part[-1].text for part in split_chains(t)[:-1])

    long = [t for t in demonstrations if t.task.meta["hops"] >= 7]
    assert not any(map(forgets, (t for t in demonstrations if t not in long)))
    careless = [t for t in long if forgets(t)]
    assert 0.45 < len(careless) / len(long) < 0.65
    # a teacher that forgets once always forgets, and is correct by chance
    ends = [part[-1].text for t in careless for part in split_chains(t)[:-1]]
    assert all(re.fullmatch(r"\w+ of \w+ lies \w+\.\n</summary>", end) for end in ends)
    right = [t.answer in t.task.answers for t in careless]
    assert 0 < sum(right) / len(right) < 0.4
    # but each step leads where its article states
    for t in careless:
        places = [call.arguments["query"] for call in t.calls]
        texts = [call.observation for call in t.calls]
        assert all(later in text for later, text in zip(places[1:], texts, strict=False))


def test_what_is_held_out_occurs_in_no_training(dialect: Dialect) -> None:
    reserved = set(WORLD.test_map.places)
    demonstrations = [
        t
        for data in ("folded", "careless")
        for t in WORLD.encoded(data, 120, DemonstrationEncoder(dialect))
    ]
    tasks = WORLD.training_questions(400)
    words = " ".join(
        [*(s.text for t in demonstrations for s in t.segments), *(t.question for t in tasks)]
    )
    assert reserved.isdisjoint(re.findall(r"\w+", words))
    assert set(WORLD.train_map.places).isdisjoint(reserved)
    tests = WORLD.evaluation_questions({"heldout": 200, "short": 100})
    assert len({t.question for t in tests}) == 300
    lengths = {(t.meta["split"], t.meta["hops"]) for t in tests}
    assert lengths == {*(("heldout", n) for n in LONG_STEPS), *(("short", n) for n in SHORT_STEPS)}


def test_walks_come_through_no_place_twice_and_end_where_the_map_does() -> None:
    trail_map = draw_map(random.Random(0), 8, set())
    found = list(draw_walks(random.Random(0), trail_map, range(1, 4)))
    assert len(found) == len(set(found))
    assert all(len(set(trail_map.trace_walk(walk))) == walk.steps + 1 for walk in found)
    assert 0 < len(found) <= 8 * 4 * 3


@pytest.mark.parametrize("name", ["autocoa", "search-r1", "otc", "hermes", "afm-mhqa"])
def test_a_chain_may_go_on_from_its_summary_in_every_dialect(name: str, tool: SearchTool) -> None:
    """If a dialect requires a thought before each call, the summary is that thought."""
    schema = tool.schema
    texts = [*WORLD.tokenizer_texts(resolve_dialect(name).tags), *iter_tool_texts([schema])]
    dialect = make_dialect(name, make_tokenizer(texts, WORLD.syllables), "")
    for data in ("demonstrations", "folded", "careless"):
        demonstrations = WORLD.encoded(data, 60, DemonstrationEncoder(dialect, [schema]))
        assert all(t.well_formed for t in demonstrations)
        assert any(t.folds for t in demonstrations) is (data != "demonstrations")
