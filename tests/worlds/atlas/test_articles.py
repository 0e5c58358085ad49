"""Articles that a model of the world Atlas reads, so that it can simulate a search for them."""

from collections import Counter
from dataclasses import replace

from fieldcraft.dialects import get_dialect
from fieldcraft.tools.search.passages import Passage, format_passages
from fieldcraft.train.scratch import new_tokenizer
from fieldcraft.types import Author
from fieldcraft.worlds.atlas.curriculum import Curriculum, tokenizer_texts
from fieldcraft.worlds.atlas.facts import deal
from fieldcraft.worlds.naming import SYLLABLES

WORLD = deal(people=60, taught=0.4, heldout=0.5, seed=0)
TAGS = get_dialect("autocoa", new_tokenizer([], SYLLABLES), "").tags
TOKENIZER = new_tokenizer(tokenizer_texts(WORLD, TAGS), SYLLABLES)
SCHEMAS = [{"type": "function", "function": {"name": "search"}}]
CURRICULUM = Curriculum(WORLD, get_dialect("autocoa", TOKENIZER, ""), SCHEMAS, variants=12, seed=0)


def test_articles_are_read_as_often_as_told_and_as_a_search_shows_them() -> None:
    """Those of what training asks about: the title is given, the text is trained. The other
    examples are those of a world without articles."""
    reading = replace(CURRICULUM, article_readings=3)
    region = [name for name, entity in WORLD.entities.items() if entity.region != "heldout"]
    for data in ("base", "demonstrations"):
        whole = reading.size_with_articles(data, None)
        assert whole == CURRICULUM.size(data, None) + 3 * len(region)
    count = reading.size_with_articles("demonstrations", 400)
    found = reading.demonstrations(count)
    articles = [t for t in found if t.task.id.startswith("article:")]
    share = 3 * len(region) / reading.size_with_articles("demonstrations", None)
    assert len(articles) == round(400 * share) > 0
    assert found[len(articles) :] == CURRICULUM.demonstrations(400 - len(articles))
    names = Counter(t.task.id.removeprefix("article:") for t in articles)
    assert set(names) <= set(region)
    assert max(names.values()) - min(names.values()) <= 1 or len(names) < len(region)
    first = articles[0]
    shown = format_passages([Passage(region[0], **WORLD.passage(region[0]))])
    assert TOKENIZER.decode(first.ids) == shown
    assert [s.author for s in first.segments] == [Author.PROMPT, Author.POLICY]
    assert first.segments[1].text == WORLD.passage(region[0])["text"]


def test_what_is_read_about_the_untaught_is_asked_in_no_closed_book_question() -> None:
    reading = replace(CURRICULUM, article_readings=3)
    asked = [t.task for t in reading.base(600) if t.task.answers]
    paths = [task.meta["path"] for task in asked if task.meta["known"]]
    subjects = {s for path in paths for s, _, _ in WORLD.hops(tuple(path))}
    regions = {WORLD.entities[name].region for name in reading.articles}
    assert regions == {"taught", "train"}
    assert {WORLD.entities[name].region for name in subjects} == {"taught"}


def test_without_articles_the_data_are_as_they_were() -> None:
    assert CURRICULUM.size_with_articles("base", None) == CURRICULUM.size("base", None)
