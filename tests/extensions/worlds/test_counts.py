"""Counts of worlds: one that would exhaust the memory is refused, and none is drawn forever."""

from pathlib import Path
from random import Random

import pytest

from cli_parts import sentence, status
from fieldcraft.extensions.worlds.gazetteer.question_sampling import (
    MAX_FAILURES,
    TRIES_PER_QUESTION,
    QuestionSampler,
)
from fieldcraft.extensions.worlds.names import SYLLABLES, draw_unused_name
from fieldcraft.types import UserError
from gazetteer_parts import some_known


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["lettercount", "world.max_length=1000000000"], "'world.max_length' is wrong: it must be"),
        (["lettercount", "world.min_length=1001"], "it must be 1000 or less"),
        (["lettercount", "evaluation.splits.heldout=1000000000"], "more than the 100000"),
        (["calculator", "evaluation.splits.heldout=1000000000"], "more than the 100000"),
        (["calculator", "world.operations=9"], "leave it out: none is accepted there."),
        (["atlas", "world.people=1000000000"], "'world.people' is wrong: it must be 100000 or"),
        (["atlas", "world.people=50000"], "the names of the world are used up by"),
        (["atlas", "world.variants=1000000000"], "'world.variants' is wrong"),
        (["atlas", "world.article_readings=1000000000"], "'world.article_readings' is wrong"),
        (["abacus", "world.notes=1000000000"], "'world.notes' is wrong"),
        (["abacus", "world.heldout_notes=20000"], "the names of the world are used up by"),
        (["schoolbook", "world.records=1000000000"], "'world.records' is wrong"),
        (["atlas", "stages.rl2.group_size=1000000000"], "a step would sample"),
    ],
)
def test_counts_without_end_are_refused(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "world"
    assert status("world", *arguments, "--out", out) == 2
    assert complaint in sentence(capsys)
    assert not out.exists()


def test_names_are_drawn_until_they_are_used_up() -> None:
    used = {first + second for first in SYLLABLES for second in SYLLABLES}
    missing = used.pop()
    assert draw_unused_name("city", Random(0), used) == missing
    with pytest.raises(UserError, match="used up by 14400 of them"):
        draw_unused_name("city", Random(0), used)


def test_a_split_without_questions_is_not_searched_for_long() -> None:
    drawn: list[int] = []

    def draw(rng: Random) -> None:
        drawn.append(1)

    sampler = QuestionSampler(some_known().gazetteer, heldout=True)
    found = sampler.draw_distinct(Random(0), 10**6, draw, lambda _: True)
    assert [*found] == []
    assert len(drawn) == MAX_FAILURES < TRIES_PER_QUESTION * 10**6
