"""Atlas: a synthetic encyclopedia whose truth is known.

People, companies, cities and countries, and the relations between them. Every entity lies in
one of three regions: `taught` (the base model learns its facts), `train` (its facts are only in
the search index; demonstrations and training questions use them) and `heldout` (its facts and its
name appear in nothing the model is trained on). So for every question the world knows the gold
answer, the path, and the least number of searches that this model needs.
"""

from __future__ import annotations

import itertools
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from fieldcraft.types import Task
from fieldcraft.worlds.names import SyllablePools

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
PART_SEPARATOR = ", the "  # two parts of an article
TEST_ONE_IN = 5  # of the wholly taught paths is for evaluations


@dataclass(frozen=True, slots=True)
class Entity:
    """Something with a name, a kind (a key of RELATIONS) and a region."""

    name: str
    kind: str
    region: Region


@dataclass(frozen=True)
class Atlas:
    """One draw of the world. `facts` maps (subject, relation) to the object's name. `reserved` are
    pairs of relations that follow one another only in questions that test for such pairs. `site` is
    the address of the site on which articles are read, None where a search gives them, and
    `snippet_parts` how much of an article a search of that site shows. `read_entities` has the
    entities whose articles the base model reads."""

    entities: dict[str, Entity]
    facts: dict[tuple[str, str], str]
    by_kind: dict[tuple[str, Region], list[str]] = field(repr=False)
    reserved: frozenset[RelationChain] = frozenset()
    site: str | None = None
    snippet_parts: int | None = None
    read_entities: frozenset[str] = frozenset()

    def with_articles_read(self, share: float) -> Atlas:
        """Return this world with a base model that reads the articles of this share of the training
        region's entities of each kind, rounded."""
        trained = (names for (_, region), names in self.by_kind.items() if region == "train")
        return replace(
            self, read_entities=frozenset(n for ns in trained for n in ns[: round(len(ns) * share)])
        )

    # -- what the encyclopedia says -------------------------------------------------------------

    def make_passage(self, name: str) -> dict[str, str]:
        """Return the article of one entity. A company's article also names the country of its city,
        which a question about the headquarters does not ask."""
        kind = self.entities[name].kind
        parts = [f"{relation} {self.facts[name, relation]}" for relation in RELATIONS[kind]]
        if kind == "company":
            city = self.facts[name, "headquarters"]
            parts[0] += f", in {self.facts[city, 'country']}"
        return {"title": name, "text": f"{name} is a {kind} with the {PART_SEPARATOR.join(parts)}."}

    def list_named_entities(self, name: str) -> list[str]:
        """Return the other entities that an article names, in their order."""
        values: list[str] = []
        for relation in RELATIONS[self.entities[name].kind]:
            values.append(self.facts[name, relation])
            if relation == "headquarters":
                values.append(self.facts[values[-1], "country"])
        return [other for other in dict.fromkeys(values) if other != name]

    def get_article_facts(self, name: str) -> set[tuple[str, str]]:
        """Return the facts that a reader of this entity's article knows."""
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
        """Return whether each fact along a path was taught to the base model or is read by it."""
        return self.read_entities.issuperset(self.list_untaught_subjects(path))

    def optimal_calls(self, *paths: Route) -> int:
        """Return the least number of searches until each fact on the paths is taught or was read.

        A search names an entity and returns its article. Each set of searches is tried, fewest
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
        """Return the facts (subject, relation) known to a chain that has read all it can reach.

        `named` are the entities that the question names. `texts` has the facts in the text of each
        entity that is looked up. An entity is reached when the question or a known fact names it:
        only then can it be looked up, and is what was taught about it of use.
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
        """The entities that are reached, and the facts that are known, from each entity by what was
        taught alone. Chains meet the same ones again and again."""
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
        """Return the question of a path with its gold answer and what the world knows about it."""
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
        """Return whether two relations follow one another that are kept out of all training."""
        return not self.reserved.isdisjoint(itertools.pairwise(relations))

    def list_chains(self, kind: str, hops: int) -> Sequence[RelationChain]:
        """Return the chains of relations of a length that start at a kind and are not reserved."""
        every = _enumerate_chains(kind, hops)
        return [c for c in every if not self.is_reserved(c)] if self.reserved else every

    def list_reserved_chains(self, kind: str, hops: int) -> Sequence[RelationChain]:
        """Return the reserved chains of relations of a length that start at a kind."""
        return [chain for chain in _enumerate_chains(kind, hops) if self.is_reserved(chain)]

    def iterate_paths(self, regions: Sequence[Region], hops: int) -> Iterator[Route]:
        """Yield all paths of a length all of whose subjects are in the regions."""
        for (kind, region), names in self.by_kind.items():
            if region in regions:
                for name in names:
                    for relations in self.list_chains(kind, hops):
                        path = (name, *relations)
                        if self.get_regions(path) <= set(regions):
                            yield path

    def get_regions(self, path: Route) -> set[Region]:
        """Return the regions of the subjects of a path: of its entities except the answer."""
        return {self.entities[subject].region for subject, _, _ in self.trace_path(path)}

    def is_test(self, path: Route) -> bool:
        """Return whether a wholly taught path is asked for in evaluations alone. Its facts are
        taught one by one, but no demonstration and no training question asks for all of it."""
        if self.get_regions(path) != {"taught"}:
            return False
        return zlib.crc32("/".join(path).encode()) % TEST_ONE_IN == 0

    def sample_path(self, rng: random.Random, regions: Sequence[Region], hops: int) -> Route:
        """Sample a path that starts in one of `regions`; kinds are weighted by START_WEIGHTS."""
        starts = [(k, r) for k, r in self.by_kind if r in regions and self.by_kind[k, r]]
        weights = [START_WEIGHTS[kind] for kind, _ in starts]
        kind, region = rng.choices(starts, weights)[0]
        return (rng.choice(self.by_kind[kind, region]), *rng.choice(self.list_chains(kind, hops)))

    # -- what is taught -------------------------------------------------------------------------

    def list_training_names(self, kind: str) -> list[str]:
        """Return the names of a kind that training may show."""
        return [*self.by_kind[kind, "taught"], *self.by_kind[kind, "train"]]

    @cached_property
    def taught_syllables(self) -> dict[str, SyllablePools]:
        """The first and the second syllables of the taught names of every kind."""
        parts = {
            kind: [re.findall("[A-Z][a-z]+", name) for name in names]
            for (kind, region), names in self.by_kind.items()
            if region == "taught"
        }
        return {k: ([a for a, _ in p], [b for _, b in p]) for k, p in parts.items()}

    @cached_property
    def taught_facts(self) -> list[tuple[str, str]]:
        """(subject, relation) of everything the base model is taught."""
        return [f for f in self.facts if self.entities[f[0]].region == "taught"]


def render_phrase(relations: RelationChain) -> str:
    """Return a phrase such as `country of the employer` for (employer, country)."""
    return " of the ".join(reversed(relations))


def render_statement(subject: str, relation: str, value: str) -> str:
    """Return a fact as the model thinks it."""
    return f"{subject} has the {relation} {value}."


@cache
def _enumerate_chains(kind: str, hops: int) -> tuple[RelationChain, ...]:
    """Return all chains of relations of a length that start at a kind."""
    if hops == 0:
        return ((),)
    targets = RELATIONS[kind].items()
    return tuple((name, *rest) for name, to in targets for rest in _enumerate_chains(to, hops - 1))
