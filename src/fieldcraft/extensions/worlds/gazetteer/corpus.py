"""Passages of a gazetteer, plain or harder to read, and the results of searches in them."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from fieldcraft.extensions.search.index import SearchIndex, build_index
from fieldcraft.extensions.search.passages import format_passages
from fieldcraft.extensions.worlds.gazetteer.articles import make_outdated, render_article
from fieldcraft.extensions.worlds.gazetteer.geonames import Place
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.types import Observation, ToolCall

CURRENT_YEAR, OUTDATED_YEAR = 2025, 1998  # years in articles of corpora with outdated ones


def iterate_passages(places: Sequence[Place]) -> Iterator[dict[str, str]]:
    """Yield an article for each place, with ids."""
    for place in places:
        yield _make_passage(place, "", render_article(place))


def iterate_harder_passages(
    places: Sequence[Place],
    others: Sequence[Place],
    outdated_share: float,
    duplicate_share: float,
) -> Iterator[dict[str, str]]:
    """Yield the articles with their years. Some places also have an older article that contradicts
    the newer one, and some have a second article in other words. `others` are places that do not
    occur in questions."""
    places_by_name = {place.name: place for place in places}
    for place in places:
        yield _make_passage(place, "", _add_year(CURRENT_YEAR, render_article(place)))
        rng = random.Random(f"editions:{place.name}")
        if rng.random() < outdated_share:
            yield _make_passage(
                place,
                "-old",
                _add_year(
                    OUTDATED_YEAR, render_article(make_outdated(place, places_by_name), "old")
                ),
            )
        if rng.random() < duplicate_share:
            yield _make_passage(
                place, "-again", _add_year(CURRENT_YEAR, render_article(place, "again"))
            )
    for place in others:
        yield _make_passage(place, "", _add_year(CURRENT_YEAR, render_article(place)))


def _make_passage(place: Place, edition: str, text: str) -> dict[str, str]:
    return {"id": f"{place.kind}:{place.name}{edition}", "title": place.name, "text": text}


def _add_year(year: int, text: str) -> str:
    return f"Written in {year}. {text}"


class GazetteerCorpus:
    """Passages, and the results of searches in them, as the tool `search` returns them.

    The index is built lazily in a temporary folder.
    """

    def __init__(self, passages: Sequence[dict[str, str]], top_k: int) -> None:
        self.passages = passages
        self.top_k = top_k

    @cached_property
    def _index(self) -> SearchIndex:
        folder = Path(mkdtemp(prefix="fieldcraft-"))
        weakref.finalize(self, rmtree, folder)
        write_json_lines(folder / "corpus.jsonl", self.passages)
        return build_index(folder / "corpus.jsonl", folder / "index")

    def make_observation(self, action: ToolCall) -> Observation:
        """Return the text of the top passages of a search."""
        query = str(action.arguments.get("query", ""))
        return Observation(format_passages(self._index.search([query], self.top_k)[0]))
