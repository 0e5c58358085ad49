"""Common properties of all worlds, and the framework's independence of each of them."""

from pathlib import Path

import pytest
from second_world import CodeBook

from checkpoints import tiny_tokenizer
from fieldcraft.config.components import ComponentKind
from fieldcraft.config.names import list_registered, resolve
from fieldcraft.data.world import World, get_simulated_calls, make_world, merge_thoughts
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.recipes.loading import load_world_recipe
from fieldcraft.types import Answer, CallOutcome, CallRecord, Task, Thought, Trajectory, UserError

SOURCES = Path(__file__).parents[3] / "src" / "fieldcraft"
WORLDS = SOURCES / "extensions" / "worlds"


class Bare(CodeBook):
    """A code book that implements only the required methods of a world."""

    oracle = World.oracle
    tokenizer_texts = World.tokenizer_texts


MADE_OF_OTHERS = ("domains",)


def test_nothing_outside_a_worlds_folder_names_it() -> None:
    """Recipes are not sources and may name worlds, and so may a world composed of others."""
    folders = [path for path in WORLDS.iterdir() if (path / "__init__.py").exists()]
    elsewhere = {
        "reasoning-gym",  # a module: its questions are those of a library
        "gazetteer-web",  # in the folder of the gazetteer, whose places it has
    }
    registered = {*list_registered(ComponentKind.WORLD)} - elsewhere
    assert sorted(folder.name for folder in folders) == sorted(registered)
    files = [*SOURCES.rglob("*.py"), *SOURCES.rglob("*.j2"), *SOURCES.rglob("*.css")]
    assert len(files) > 100
    for folder in folders:
        naming = {path for path in files if folder.name in path.read_text("utf-8").lower()}
        own = [folder, *(WORLDS / name for name in MADE_OF_OTHERS)]
        naming.discard(SOURCES / "config" / "components.py")  # the register of all names
        assert {path for path in naming if not set(own) & set(path.parents)} == set()
        assert naming  # its own files do


def test_what_a_world_need_not_have() -> None:
    world = Bare(seed=0)
    assert world.oracle is None
    with pytest.raises(UserError, match="makes no first model: set model to the folder of a model"):
        world.tokenizer_texts([])
    with pytest.raises(UserError, match="has no pairs: give pairs=FILE"):
        world.pairs("pairs", None, DemonstrationEncoder(None))  # type: ignore[arg-type]
    assert world.judge_simulations(Trajectory(Task("t", "?", ()))) is None
    assert world.small_copy() is world
    assert world.syllables == ()


class OfEarlierVersions(CodeBook):
    """A code book with the method of earlier versions."""

    def demonstrations(self, dataset, count, dialect, tools):  # type: ignore[no-untyped-def]
        return []


def test_methods_of_earlier_versions_are_answered_with_the_new_ones() -> None:
    with pytest.raises(UserError, match=r"let demonstrations\(dataset, count\) return questions"):
        make_world("test_base:OfEarlierVersions", {}, seed=0)


def test_examples_are_the_encoded_demonstrations_unless_a_world_says_otherwise() -> None:
    book, encoder = CodeBook(seed=0), DemonstrationEncoder(make_dialect("hermes", tiny_tokenizer()))
    steps = book.demonstrations("demonstrations", 3)
    found = book.encoded("demonstrations", 3, encoder)
    assert [t.ids for t in found] == [encoder.encode(*each).ids for each in steps]
    assert len(found) == 3


def test_a_world_is_made_from_its_name_and_settings() -> None:
    book = make_world("second_world:CodeBook", {"codes": 6}, seed=3)
    assert isinstance(book, CodeBook)
    assert book.seed == 3
    assert len(book.passages()) == 6
    assert book.passages() == CodeBook(3, codes=6).passages()
    assert len(make_world("test_base:Bare", {}, seed=0).passages()) == 30  # an inherited setting


@pytest.mark.parametrize("name", ["atals", "second_world:CodeBok", "second_world:WORDS"])
def test_a_name_that_is_no_world(name: str) -> None:
    with pytest.raises(UserError, match=r"'atlas'|'CodeBook'|is not a world: make it a subclass"):
        resolve(ComponentKind.WORLD, name)


@pytest.mark.parametrize("name", sorted({*list_registered(ComponentKind.WORLD)}))
def test_every_world_has_questions_without_a_recipe_for_it(name: str) -> None:
    needed = ["world.generators={leg_counting: {}}"] if name == "reasoning-gym" else []
    splits = load_world_recipe(name, "smoke", needed).evaluation.splits
    own = resolve(ComponentKind.WORLD, name).splits
    if name == "domains":
        assert splits == dict.fromkeys(own, 500)
        given = load_world_recipe(name, "smoke", ["evaluation.splits={code: 7}"])
        assert given.evaluation.splits == {"code": 7}
    assert splits
    assert splits.keys() <= own.keys()


def test_the_oracles_way_is_one_best_step_after_another() -> None:
    book = CodeBook(seed=0)
    [task] = book.evaluation_questions({"heldout": 1})
    steps = book.oracle.demonstration(task)
    assert steps[-1] == Answer(task.answers[0])
    assert [type(step).__name__ for step in steps] == [
        "ToolCall",
        "Observation",
        "Thought",
        "Answer",
    ]
    assert [book.oracle.next_step(task, steps[:i]) for i in range(4)] == steps


def test_thoughts_that_follow_one_another_are_one() -> None:
    a, b, end = Thought("A."), Thought("B."), Answer("x")
    assert merge_thoughts([a, b, end, a]) == [Thought("A. B."), end, a]


def test_simulated_calls_are_those_a_simulator_wrote() -> None:
    calls = [
        CallRecord("search", {}, "", CallOutcome.OK, 0.0, simulated=kind) for kind in (True, False)
    ]
    assert get_simulated_calls(Trajectory(Task("t", "?", ()), calls=calls)) == calls[:1]
