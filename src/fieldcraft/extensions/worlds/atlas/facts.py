"""Atlas: a synthetic encyclopedia with known facts, and the parsing of its articles.

It contains people, companies, cities and countries, and the relations between them. Every entity is
in one of three regions: `taught` (the base model learns its facts), `train` (its facts are only in
the search index; demonstrations and training questions use them) and `heldout` (its name and facts
occur in no training data). So for every question the gold answer, the path, and the minimum number
of searches of this model are known.

A text is parsed for the facts that it states, and for the form of an article.
"""

from __future__ import annotations

import itertools
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from fieldcraft.extensions.worlds.names import SyllablePools
from fieldcraft.extensions.worlds.pages import ELLIPSIS
from fieldcraft.types import Task

Region = str  # "taught" | "train" | "heldout"
Route = tuple[str, ...]  # an entity, then the relations to follow from it
Fact = tuple[str, str, str]  # subject, relation, object
RelationChain = tuple[str, ...]  # relations

RELATIONS: dict[str, dict[str, str]] = {
    "person": {"employer": "company", "birthplace": "city", "mentor": "person"},
    "company": {"headquarters": "city", "founder": "person"},
    "city": {"country": "country", "mayor": "person"},
    "country": {"capital": "city", "leader": "person"},
}
START_WEIGHTS = {"person": 3.0, "company": 1.0, "city": 1.0, "country": 0.5}
PART_SEPARATOR = ", the "  # between two parts of an article
ARTICLE_REGEX = re.compile(r"([A-Z][\w ]*?) is a (\w+) with the ([^.\n]*)")
PART_REGEX = re.compile(r"(\w+) ([^,]+)(?:, in ([^,]+))?")  # one part of an article
TEST_ONE_IN = 5  # one in so many fully taught paths is reserved for evaluations


@dataclass(frozen=True, slots=True)
class Entity:
    """An entity with a name, a kind (a key of RELATIONS) and a region."""

    name: str
    kind: str
    region: Region


@dataclass(frozen=True)
class Atlas:
    """One draw of the world. `facts` maps (subject, relation) to the object's name. `reserved` are
    pairs of relations that follow one another only in questions that test such pairs. `site` is the
    address of the site with the articles, or None if a search returns them, and `snippet_parts` is
    the number of parts of an article in search results of that site. `read_entities` holds the
    entities whose articles the base model reads."""

    entities: dict[str, Entity]
    facts: dict[tuple[str, str], str]
    by_kind: dict[tuple[str, Region], list[str]] = field(repr=False)
    reserved: frozenset[RelationChain] = frozenset()
    site: str | None = None
    snippet_parts: int | None = None
    read_entities: frozenset[str] = frozenset()

    def with_articles_read(self, share: float) -> Atlas:
        """Return this world with a base model that reads the articles of a fraction `share` of the
        training region's entities of each kind, rounded."""
        trained = (names for (_, region), names in self.by_kind.items() if region == "train")
        return replace(
            self, read_entities=frozenset(n for ns in trained for n in ns[: round(len(ns) * share)])
        )

    # -- contents of the encyclopedia -----------------------------------------------------------

    def make_passage(self, name: str) -> dict[str, str]:
        """Return the article of one entity. A company's article also names the country of its city,
        which is not part of the question about the headquarters."""
        kind = self.entities[name].kind
        parts = [f"{relation} {self.facts[name, relation]}" for relation in RELATIONS[kind]]
        if kind == "company":
            city = self.facts[name, "headquarters"]
            parts[0] += f", in {self.facts[city, 'country']}"
        return {"title": name, "text": f"{name} is a {kind} with the {PART_SEPARATOR.join(parts)}."}

    def list_named_entities(self, name: str) -> list[str]:
        """Return the other entities that an article names, in order."""
        values: list[str] = []
        for relation in RELATIONS[self.entities[name].kind]:
            values.append(self.facts[name, relation])
            if relation == "headquarters":
                values.append(self.facts[values[-1], "country"])
        return [other for other in dict.fromkeys(values) if other != name]

    def get_article_facts(self, name: str) -> set[tuple[str, str]]:
        """Return the facts that the article of an entity states."""
        kind = self.entities[name].kind
        known = {(name, relation) for relation in RELATIONS[kind]}
        if kind == "company":
            known.add((self.facts[name, "headquarters"], "country"))
        return known

    def make_passages(self) -> list[dict[str, str]]:
        """Return the corpus: one article per entity, with ids."""
        return [{"id": str(i), **self.make_passage(name)} for i, name in enumerate(self.entities)]

    # -- questions ------------------------------------------------------------------------------

    def trace_path(self, path: Route) -> list[Fact]:
        """Return the facts (subject, relation, object) along a path."""
        subject, found = path[0], []
        for relation in path[1:]:
            found.append((subject, relation, self.facts[subject, relation]))
            subject = found[-1][2]
        return found

    def list_untaught_subjects(self, path: Route) -> list[str]:
        """Return the entities along a path whose facts the base model was not taught."""
        subjects = (subject for subject, _, _ in self.trace_path(path))
        return [name for name in subjects if self.entities[name].region != "taught"]

    def is_read(self, path: Route) -> bool:
        """Return whether the base model was taught or reads each fact along a path."""
        return self.read_entities.issuperset(self.list_untaught_subjects(path))

    def optimal_calls(self, *paths: Route) -> int:
        """Return the minimum number of searches after which each fact on the paths is known.

        A search names an entity and returns its article. All sets of searches are tried, smallest
        first.
        """
        facts = {
            (subject, relation) for path in paths for subject, relation, _ in self.trace_path(path)
        }
        subjects = sorted({subject for subject, _ in facts})
        for count in range(len(subjects) + 1):
            for chosen in itertools.combinations(subjects, count):
                articles = {name: self.get_article_facts(name) for name in chosen}
                if facts <= self.find_known_facts([path[0] for path in paths], articles):
                    return count
        raise AssertionError(f"no set of searches answers {paths}")

    def find_known_facts(
        self, named: Iterable[str], texts: Mapping[str, set[tuple[str, str]]]
    ) -> set[tuple[str, str]]:
        """Return the facts (subject, relation) known to a chain after reading everything within
        reach. `named` are the entities in the question. `texts` holds the facts in the text of each
        entity that is looked up. An entity is reached when the question or a known fact names it:
        only then can it be looked up, and only then are taught facts about it useful.
        """
        known: set[tuple[str, str]] = set()
        reached: set[str] = set()
        unread, new = dict(texts), set(named)
        while new:
            for name in new:
                names, facts = self._reachable_facts[name]
                reached |= names
                known |= facts
            found = {fact for name in unread.keys() & reached for fact in unread.pop(name)}
            known |= found
            new = {self.facts[fact] for fact in found} - reached
        return known

    @cached_property
    def _reachable_facts(self) -> Mapping[str, tuple[set[str], set[tuple[str, str]]]]:
        """Entities and facts that are reachable from each entity by taught facts alone; cached,
        because chains reach the same entities repeatedly."""
        found: dict[str, tuple[set[str], set[tuple[str, str]]]] = {}
        for start in self.entities:
            reached, known = found[start] = ({start}, set())
            new = [start]
            while new:
                entity = self.entities[new.pop()]
                if entity.region == "taught":
                    facts = {(entity.name, relation) for relation in RELATIONS[entity.kind]}
                    known |= facts
                    new += {self.facts[fact] for fact in facts} - reached
                    reached.update(new)
        return found

    def make_question(self, path: Route) -> str:
        """Return a question such as `What is the country of the employer of Bran Tel?`"""
        return f"What is the {render_phrase(path[1:])} of {path[0]}?"

    def make_task(self, path: Route, split: str) -> Task:
        """Return the question of a path with its gold answer and metadata."""
        hops = self.trace_path(path)
        meta = {
            "split": split,
            "hops": len(hops),
            "path": list(path),
            "cluster": path[0],
            "known": all(self.entities[subject].region == "taught" for subject, _, _ in hops),
            "calls_optimal": self.optimal_calls(path),
            "read": self.is_read(path),
        }
        return Task(f"atlas:{'/'.join(path)}", self.make_question(path), (hops[-1][2],), meta)

    def is_reserved(self, relations: RelationChain) -> bool:
        """Return whether the relations contain a pair that is reserved for evaluations."""
        return not self.reserved.isdisjoint(itertools.pairwise(relations))

    def list_chains(self, kind: str, hops: int) -> Sequence[RelationChain]:
        """Return the unreserved chains of `hops` relations that start at a kind."""
        every = _enumerate_chains(kind, hops)
        return [c for c in every if not self.is_reserved(c)] if self.reserved else every

    def list_reserved_chains(self, kind: str, hops: int) -> Sequence[RelationChain]:
        """Return the reserved chains of `hops` relations that start at a kind."""
        return [chain for chain in _enumerate_chains(kind, hops) if self.is_reserved(chain)]

    def iterate_paths(self, regions: Sequence[Region], hops: int) -> Iterator[Route]:
        """Yield all paths of a given length whose subjects are all in the regions."""
        for (kind, region), names in self.by_kind.items():
            if region in regions:
                for name in names:
                    for relations in self.list_chains(kind, hops):
                        path = (name, *relations)
                        if self.get_regions(path) <= set(regions):
                            yield path

    def get_regions(self, path: Route) -> set[Region]:
        """Return the regions of the subjects of a path, which exclude the answer."""
        return {self.entities[subject].region for subject, _, _ in self.trace_path(path)}

    def is_test(self, path: Route) -> bool:
        """Return whether a fully taught path occurs only in evaluations. Its facts are taught
        individually, but no demonstration and no training question uses the whole path."""
        if self.get_regions(path) != {"taught"}:
            return False
        return zlib.crc32("/".join(path).encode()) % TEST_ONE_IN == 0

    def sample_path(self, rng: random.Random, regions: Sequence[Region], hops: int) -> Route:
        """Sample a path that starts in one of `regions`; kinds are weighted by START_WEIGHTS."""
        starts = [(k, r) for k, r in self.by_kind if r in regions and self.by_kind[k, r]]
        weights = [START_WEIGHTS[kind] for kind, _ in starts]
        kind, region = rng.choices(starts, weights)[0]
        return (rng.choice(self.by_kind[kind, region]), *rng.choice(self.list_chains(kind, hops)))

    # -- taught entities and facts ---------------------------------------------------------------

    def list_training_names(self, kind: str) -> list[str]:
        """Return the names of a kind that may occur in training."""
        return [*self.by_kind[kind, "taught"], *self.by_kind[kind, "train"]]

    @cached_property
    def taught_syllables(self) -> dict[str, SyllablePools]:
        """First and second syllables of the taught names of each kind."""
        parts = {
            kind: [re.findall("[A-Z][a-z]+", name) for name in names]
            for (kind, region), names in self.by_kind.items()
            if region == "taught"
        }
        return {k: ([a for a, _ in p], [b for _, b in p]) for k, p in parts.items()}

    @cached_property
    def taught_facts(self) -> list[tuple[str, str]]:
        """All facts that the base model is taught, as (subject, relation)."""
        return [f for f in self.facts if self.entities[f[0]].region == "taught"]


def render_phrase(relations: RelationChain) -> str:
    """Return a phrase such as `country of the employer` for (employer, country)."""
    return " of the ".join(reversed(relations))


def render_statement(subject: str, relation: str, value: str) -> str:
    """Return a fact as a sentence of a thought."""
    return f"{subject} has the {relation} {value}."


@cache
def _enumerate_chains(kind: str, hops: int) -> tuple[RelationChain, ...]:
    """Return all chains of `hops` relations that start at a kind."""
    if hops == 0:
        return ((),)
    targets = RELATIONS[kind].items()
    return tuple((name, *rest) for name, to in targets for rest in _enumerate_chains(to, hops - 1))


# -- parsing of articles -----------------------------------------------------------------------


def parse_facts(text: str) -> set[Fact]:
    """Return the facts that the articles in a text state, true or not. From a broken article,
    return the facts that can be parsed."""
    found = set()
    for subject, _, body in ARTICLE_REGEX.findall(text):
        for part in body.split(PART_SEPARATOR):
            if match := PART_REGEX.fullmatch(part.removesuffix(ELLIPSIS).strip()):
                relation, value, country = match.groups()
                found.add((subject, relation, value))
                if country:
                    found.add((value, "country", country))
    return found


def is_article(title: str, text: str) -> bool:
    """Return whether a text has the form of a complete article about `title`, true or not."""
    match = ARTICLE_REGEX.fullmatch(text.removesuffix("."))
    if match is None or not text.endswith(".") or match[1] != title or match[2] not in RELATIONS:
        return False
    parts = [PART_REGEX.fullmatch(part) for part in match[3].split(PART_SEPARATOR)]
    form = [(part[1], part[3] is not None) for part in parts if part]
    return form == [(r, r == "headquarters") for r in RELATIONS[match[2]]] and None not in parts
