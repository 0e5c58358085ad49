"""Texts that a base model of the world Atlas reads or does not read: articles and single facts."""

from collections import Counter
from dataclasses import replace

import pytest

from fieldcraft.data.passages import Passage, format_passages
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.extensions.worlds.atlas.curriculum import AtlasCurriculum, iterate_tokenizer_texts
from fieldcraft.extensions.worlds.atlas.generation import generate_atlas
from fieldcraft.extensions.worlds.atlas.questions import draw_evaluation_tasks, draw_train_tasks
from fieldcraft.extensions.worlds.names import SYLLABLES
from fieldcraft.train.scratch import make_tokenizer
from fieldcraft.types import Author

WORLD = generate_atlas(people=60, taught=0.4, heldout=0.5, seed=0)
TAGS = make_dialect("autocoa", make_tokenizer([], SYLLABLES), "").tags
TOKENIZER = make_tokenizer(iterate_tokenizer_texts(WORLD, TAGS), SYLLABLES)
SCHEMAS = [{"type": "function", "function": {"name": "search"}}]
CURRICULUM = AtlasCurriculum(
    WORLD,
    variants=12,
    seed=0,
    encoder=DemonstrationEncoder(make_dialect("autocoa", TOKENIZER, ""), SCHEMAS),
)
READING = replace(CURRICULUM, world=WORLD.with_articles_read(1.0), article_readings=3)


def test_articles_are_read_as_often_as_told_and_as_a_search_shows_them() -> None:
    """Articles cover the subjects of training questions: the title is given, the text is trained.

    The other examples equal the examples of a world without articles.
    """
    reading = READING
    region = [name for name, entity in WORLD.entities.items() if entity.region != "heldout"]
    for data in ("base", "demonstrations"):
        whole = reading.get_size_with_articles(data, None)
        assert whole == CURRICULUM.get_size(data, None) + 3 * len(region)
    count = reading.get_size_with_articles("demonstrations", 400)
    found = reading.make_demonstrations(count)
    articles = [t for t in found if t.task.id.startswith("article:")]
    share = 3 * len(region) / reading.get_size_with_articles("demonstrations", None)
    assert len(articles) == round(400 * share) > 0
    others = CURRICULUM.make_demonstrations(400 - len(articles))
    assert [t.segments for t in found[len(articles) :]] == [t.segments for t in others]
    names = Counter(t.task.id.removeprefix("article:") for t in articles)
    assert set(names) <= set(region)
    assert max(names.values()) - min(names.values()) <= 1 or len(names) < len(region)
    first = articles[0]
    result = format_passages([Passage(region[0], **WORLD.make_passage(region[0]))])
    assert TOKENIZER.decode(first.ids) == result
    assert [s.author for s in first.segments] == [Author.PROMPT, Author.POLICY]
    assert first.segments[1].text == WORLD.make_passage(region[0])["text"]


def test_what_is_read_about_the_untaught_is_asked_in_no_closed_book_question() -> None:
    tasks = [t.task for t in READING.make_base_texts(600) if t.task.answers]
    paths = [task.meta["path"] for task in tasks if task.meta["known"]]
    subjects = {s for path in paths for s, _, _ in WORLD.trace_path(tuple(path))}
    regions = {WORLD.entities[name].region for name in READING.article_names}
    assert regions == {"taught", "train"}
    assert {WORLD.entities[name].region for name in subjects} == {"taught"}


def test_without_articles_the_data_are_as_they_were() -> None:
    assert CURRICULUM.get_size_with_articles("base", None) == CURRICULUM.get_size("base", None)


def test_a_share_of_the_training_region_is_read_and_questions_say_so() -> None:
    """The share is equal for each kind. A question is read if its entities are taught or read."""
    half = WORLD.with_articles_read(0.5)
    trained = {n for n, e in WORLD.entities.items() if e.region == "train"}
    kinds = Counter(WORLD.entities[name].kind for name in trained)
    assert half.read_entities < trained
    found = Counter(WORLD.entities[name].kind for name in half.read_entities)
    assert found == {kind: round(count / 2) for kind, count in kinds.items()}
    tasks = draw_train_tasks(half, seed=0, count=300)
    for task in tasks:
        subjects = {s for s, _, _ in half.trace_path(tuple(task.meta["path"]))}
        assert task.meta["read"] == (not subjects & (trained - half.read_entities))
    assert {(t.meta["known"], t.meta["read"]) for t in tasks} == {
        (True, True),
        (False, True),
        (False, False),
    }


def test_demonstrations_and_articles_leave_what_is_not_read_unknown() -> None:
    """Questions about unread entities are answered from searches only, like held-out ones."""
    half = replace(READING, world=WORLD.with_articles_read(0.5))
    unread = {
        n for n, e in WORLD.entities.items() if e.region == "train"
    } - half.world.read_entities
    assert unread.isdisjoint(half.article_names)
    named = Counter(
        subject
        for task, _ in half.demonstrations("demonstrations", 900)
        for subject in task.meta["path"][:1]
    )
    assert unread.isdisjoint(named)
    assert half.world.read_entities & named.keys()
    everything = replace(half, world=WORLD)  # without articles no entity is excluded
    begin = {task.meta["path"][0] for task, _ in everything.demonstrations("demonstrations", 900)}
    assert unread & begin


@pytest.mark.long
def test_of_what_evaluations_ask_only_a_base_model_is_asked_and_only_for_single_facts() -> None:
    splits = {"heldout": 60, "heldout_start": 60, "known": 200, "mixed": 200, "four_hops": 60}
    evaluated = {t.question: t for t in draw_evaluation_tasks(WORLD, 0, splits)}
    base = {t.task.question for t in CURRICULUM.make_base_texts(4000)} & evaluated.keys()
    assert base
    assert {(evaluated[q].meta["hops"], evaluated[q].meta["known"]) for q in base} == {(1, True)}
    for data in ("demonstrations", "wasteful", "team"):
        assert evaluated.keys().isdisjoint(
            t.question for t, _ in CURRICULUM.demonstrations(data, 2000)
        )
    assert evaluated.keys().isdisjoint(t.question for t in draw_train_tasks(WORLD, 0, 4000))
