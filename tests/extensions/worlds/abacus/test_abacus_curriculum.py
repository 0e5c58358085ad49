"""The training data of Abacus: correct, well-formed, and free of held-out content."""

import re
from collections import Counter

import pytest

from fieldcraft.data.world import make_world
from fieldcraft.dialects import make_dialect, resolve_dialect
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.extensions.worlds.abacus.curriculum import list_single_sums
from fieldcraft.extensions.worlds.abacus.instructions import is_heldout
from fieldcraft.train.scratch import make_tokenizer
from fieldcraft.types import Author, Trajectory

COUNT = 300
SETS = ("base", "demonstrations", "wasteful", "careless")


@pytest.fixture(scope="module")
def world():
    return make_world("abacus", {}, 5)


@pytest.fixture(scope="module")
def dialect(world):
    tokenizer = make_tokenizer(world.tokenizer_texts(resolve_dialect("torl").tags), world.syllables)
    return make_dialect("torl", tokenizer, "")


@pytest.fixture(scope="module")
def data(world, dialect) -> dict[str, list[Trajectory]]:
    found = {name: world.encoded(name, COUNT, DemonstrationEncoder(dialect)) for name in SETS}
    pairs = world.pairs("pairs", COUNT, DemonstrationEncoder(dialect))
    return {**found, "pairs": [side for pair in pairs for side in pair]}


def text(trajectory: Trajectory) -> str:
    return "".join(segment.text for segment in trajectory.segments)


@pytest.mark.parametrize("name", ["demonstrations", "wasteful"])
def test_demonstrations_are_right_and_well_formed(data, name: str) -> None:
    for trajectory in data[name]:
        assert trajectory.answer == trajectory.task.answers[0]
        assert trajectory.well_formed
    assert {t.task.meta["kind"] for t in data[name]} == {"head", "program", "note", "given"}


def test_demonstrations_make_the_least_number_of_calls(data) -> None:
    for trajectory in data["demonstrations"]:
        assert len(trajectory.calls) == trajectory.task.meta["calls_optimal"]


def test_the_wasteful_teacher_computes_half_of_the_small_sums(data) -> None:
    extra = Counter(
        len(t.calls) - t.task.meta["calls_optimal"]
        for t in data["wasteful"]
        if t.task.meta["kind"] == "head"
    )
    assert extra.keys() == {0, 1}
    assert 0.3 < extra[1] / extra.total() < 0.7


def test_the_careless_teacher_is_wrong_in_a_third_of_what_needs_programs(data) -> None:
    """All are well-formed, and questions about small numbers are answered correctly."""
    right = Counter(
        (t.task.meta["kind"], t.answer == t.task.answers[0])
        for t in data["careless"]
        if t.well_formed
    )
    assert right.total() == COUNT
    assert right["head", False] == 0
    wrong = sum(count for (_, is_right), count in right.items() if not is_right)
    assert 0.2 < wrong / (COUNT - right["head", True]) < 0.4
    assert all(right[kind, True] and right[kind, False] for kind in ("program", "note", "given"))


def test_the_base_model_reads_and_computes_but_sees_no_program(data) -> None:
    base = data["base"]
    assert not any("python" in text(t) or t.calls for t in base)
    assert sum("too large" in text(t) for t in base) == 60
    read = [t for t in base if t.task.question == ""]
    assert len(read) == 90
    for trajectory in read:
        prompt, output = trajectory.segments
        assert (prompt.author, output.author) == (Author.PROMPT, Author.POLICY)
        assert sorted(re.findall(r"Take .*?\.", prompt.text)) == sorted(
            re.findall(r"Take .*?\.", output.text)
        )


def test_no_training_shows_what_is_held_out(world, data) -> None:
    names = {name for group in world.test_abacus.names.values() for name in group}
    for trajectories in data.values():
        for trajectory in trajectories:
            content = text(trajectory)
            assert not set(re.findall(r"[A-Z]\w* [A-Z]\w*", content)) & names
            numbers = re.findall(r"(?:Take|add|away|by) (\d+)", content)
            assert not any(is_heldout(int(number)) for number in numbers if int(number) > 20)


def test_both_sides_of_a_pair_differ_in_their_last_segment(world, dialect) -> None:
    for chosen, rejected in world.pairs("pairs", 100, DemonstrationEncoder(dialect)):
        assert [s.ids for s in chosen.segments[:-1]] == [s.ids for s in rejected.segments[:-1]]
        assert chosen.segments[-1].ids[0] != rejected.segments[-1].ids[0]


def test_every_sum_is_taught_once_by_itself() -> None:
    sums = list_single_sums()
    assert len(sums) == len(set(map(str, sums))) == 102
    assert all(instruction.is_small for instruction in sums)


def test_the_data_are_a_function_of_the_seed(dialect) -> None:
    first, same, other = (
        [
            text(t)
            for t in make_world("abacus", {}, seed).encoded(
                "wasteful", 40, DemonstrationEncoder(dialect)
            )
        ]
        for seed in (1, 1, 2)
    )
    assert first == same != other


def test_a_pair_of_digits_is_one_token(dialect) -> None:
    tokenizer = dialect.tokenizer
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("Take 4821, add 905.")]
    assert pieces == ["Take ", "48", "21", ", ", "add ", "90", "5", "."]
