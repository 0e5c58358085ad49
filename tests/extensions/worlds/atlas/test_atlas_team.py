"""The scripted team of Atlas: its mistakes are real, and all of them are repaired."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from fieldcraft.data.world import make_world
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.afm_grades import parse_grades, parse_score
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.extensions.worlds.atlas.curriculum import AtlasCurriculum, iterate_tokenizer_texts
from fieldcraft.extensions.worlds.atlas.facts import Route
from fieldcraft.extensions.worlds.atlas.generation import generate_atlas
from fieldcraft.extensions.worlds.atlas.oracle import must_search
from fieldcraft.extensions.worlds.atlas.team import make_team_demonstration
from fieldcraft.extensions.worlds.names import SYLLABLES
from fieldcraft.rewards.answers import exact_match
from fieldcraft.train.scratch import make_tokenizer
from fieldcraft.types import (
    Answer,
    Author,
    DemoStep,
    Observation,
    Status,
    Thought,
    ThoughtRole,
    ToolCall,
)

WORLD = generate_atlas(people=60, taught=0.4, heldout=0.5, seed=0)
TAGS = make_dialect("afm-mhqa", make_tokenizer([], SYLLABLES), "").tags
TOKENIZER = make_tokenizer(iterate_tokenizer_texts(WORLD, TAGS), SYLLABLES)
SCHEMAS = [{"type": "function", "function": {"name": "search"}}]


def paths(count: int) -> list[Route]:
    rng = random.Random(3)
    return [WORLD.sample_path(rng, ["train", "taught"], 1 + i % 3) for i in range(count)]


def chains(mistakes: float, count: int = 120) -> list[tuple[Route, list[DemoStep]]]:
    return [
        (path, make_team_demonstration(WORLD, path, random.Random(i), mistakes))
        for i, path in enumerate(paths(count))
    ]


def poor(steps: Sequence[DemoStep]) -> list[str]:
    """Return the criteria with a poor grade, in their order."""
    return [
        name
        for step in steps
        if isinstance(step, Thought) and step.role is ThoughtRole.REFLECT
        for name, grade in parse_grades(step.text).items()
        if grade == "poor"
    ]


def scores(steps: Sequence[DemoStep]) -> list[int | None]:
    return [
        parse_score(step.text)
        for step in steps
        if isinstance(step, Thought) and step.role is ThoughtRole.CHECK
    ]


def test_without_mistakes_it_searches_for_what_it_must_and_checks_once() -> None:
    for path, steps in chains(0.0):
        assert steps[-1] == Answer(WORLD.trace_path(path)[-1][2])
        assert (poor(steps), scores(steps)) == ([], [4])
        queries = [s.arguments["query"] for s in steps if isinstance(s, ToolCall)]
        read: set[tuple[str, str]] = set()
        for subject, relation, _ in WORLD.trace_path(path):
            if must_search(WORLD, subject, relation, read):
                assert queries.pop(0) == subject
                read |= WORLD.get_article_facts(subject)
        assert queries == []


def test_every_kind_of_mistake_is_seen_and_repaired() -> None:
    for path, steps in chains(1.0):
        answer = WORLD.trace_path(path)[-1][2]
        assert steps[-1] == Answer(answer)
        searches = any(isinstance(step, ToolCall) for step in steps)
        expected = ["information_conflict", "tool_effectiveness"] if searches else []
        assert sorted(poor(steps)) == expected
        first, last = scores(steps)
        assert first in (1, 2)
        assert last == 4
        suggested = [
            s.text for s in steps if isinstance(s, Thought) and s.role is ThoughtRole.SUGGEST
        ]
        assert suggested[0] != suggested[1] == answer
        plans = sum(isinstance(s, Thought) and s.role is ThoughtRole.PLAN for s in steps)
        assert plans == 2 + len(expected)  # each mistake requires one more plan


def test_a_wrong_search_reads_the_article_of_a_taught_entity() -> None:
    """No fact of the training region is revealed unless the question asks for it."""
    wrong = 0
    for path, steps in chains(1.0):
        subjects = {subject for subject, _, _ in WORLD.trace_path(path)}
        for action, observed in pairwise(steps):
            if isinstance(action, ToolCall):
                name = action.arguments["query"]
                article = WORLD.make_passage(name)
                text = f'result 1: "{article["title"]}"\n{article["text"]}'
                assert observed == Observation(text)
                assert name in subjects or WORLD.entities[name].region == "taught"
                wrong += name not in subjects
    assert wrong > 40


def test_mistakes_come_at_the_set_rate_and_follow_from_the_key() -> None:
    found = [steps for _, steps in chains(0.25, 600)]
    assert found == [steps for _, steps in chains(0.25, 600)]
    assert 0.2 < sum(len(scores(steps)) > 1 for steps in found) / len(found) < 0.3
    acting = [steps for steps in found if any(isinstance(step, ToolCall) for step in steps)]
    for criterion in ("information_conflict", "tool_effectiveness"):
        assert 0.2 < sum(criterion in poor(steps) for steps in acting) / len(acting) < 0.3


@pytest.mark.parametrize("name", ["afm-mhqa", "afm-web"])
def test_the_data_set_obeys_the_grammar_and_names_nothing_that_is_held_out(name: str) -> None:
    dialect = make_dialect(name, TOKENIZER, "")
    found = AtlasCurriculum(
        WORLD, variants=4, seed=0, mistakes=0.5, encoder=DemonstrationEncoder(dialect, SCHEMAS)
    ).make_team(150)
    heldout = [n for n, entity in WORLD.entities.items() if entity.region == "heldout"]
    for trajectory in found:
        assert (trajectory.status, trajectory.well_formed) == (Status.ANSWERED, True)
        assert exact_match(trajectory.answer or "", trajectory.task.answers) == 1.0
        text = TOKENIZER.decode(trajectory.ids)
        assert not [held for held in heldout if held in text]
    policy = "".join(s.text for t in found for s in t.segments if s.author is Author.POLICY)
    assert "Poor\n" in policy
    assert "The score this time is:1\n" in policy


def test_every_word_of_a_team_is_one_token() -> None:
    words = ("information_conflict : Good", "I know enough.", "Find the mayor of ")
    assert [len(TOKENIZER.encode(text)) for text in words] == [5, 4, 4]


def test_a_recipe_sets_the_rate() -> None:
    dialect = make_dialect("afm-mhqa", TOKENIZER, "")
    settings = {"people": 60, "variants": 2}
    texts = {}
    for mistakes in (0.0, 1.0):
        world = make_world("atlas", {**settings, "mistakes": mistakes}, 0)
        demonstrations = world.encoded("team", 20, DemonstrationEncoder(dialect, SCHEMAS))
        texts[mistakes] = "".join(s.text for t in demonstrations for s in t.segments)
        task = world.training_questions(3)[2]
        chain = world.team_demonstration(task, random.Random("key"))
        assert chain == world.team_demonstration(task, random.Random("key"))
        assert len(scores(chain)) == 1 + (mistakes == 1.0)
    assert "is:1" not in texts[0.0]
    assert "Poor" not in texts[0.0]
    assert "Poor" in texts[1.0]
