"""Queries for a further search."""

import tracemalloc
from itertools import islice

from fieldcraft.extensions.curation.queries import list_queries


def test_spans_of_the_question_then_titles_and_names_then_single_words() -> None:
    results = [("Tom Brady (football)", "He joined the New England Patriots in 2000.")]
    assert list(list_queries("how long has tom brady been playing?", results)) == [
        "long has tom brady",
        "tom brady been playing",
        "long has tom",
        "brady been playing",
        "tom brady",
        "New England Patriots",
        "long",
        "tom",
        "brady",
        "playing",
    ]


def test_a_supporting_title_is_a_query_once_it_is_mentioned() -> None:
    titles = ["Arthur's Magazine", "Godey (Louis)", "Unmentioned"]
    results = [
        ("Arthur's Magazine", "It was merged into that of godey in May. The end of J. Moss.")
    ]
    queries = list_queries("which magazine came first, arthur's magazine?", results, titles)
    assert list(islice(queries, 2)) == ["Arthur's Magazine", "Godey"]
    assert "Unmentioned" not in list(queries)


def test_no_query_repeats_the_words_of_the_question() -> None:
    found = list(list_queries("Who is Ada Moss?", [("Ada Moss", "Moss, Ada, is what Who is.")]))
    assert found == ["Moss", "Ada"]
    assert list(list_queries("who is it", [])) == []


def test_a_long_question_takes_little_memory() -> None:
    words = [f"word{number}" for number in range(400)]
    tracemalloc.start()
    try:
        queries = list(islice(list_queries(" ".join(words), []), 3))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert queries == [" ".join(words[:-1]), " ".join(words[1:]), " ".join(words[:-2])]
    assert peak < 2**22
