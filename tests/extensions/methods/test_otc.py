"""OTC's tags that differ from Search-R1's; the rest is the same code."""

import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.dialects import make_dialect

SEARCH = "<think> I need it. </think>\n<search> capital of Norway </search>"
ANSWER = "<think> So. </think>\n<answer> Oslo </answer>"


def test_results_come_back_as_an_observation() -> None:
    dialect = make_dialect("otc", tiny_tokenizer())
    assert dialect.render_observation("a b") == "\n\n<observation>a b</observation>\n\n"
    prompt = dialect.tokenizer.decode(dialect.encode_prompt("who?", []))
    assert "between <observation> and </observation>" in prompt
    assert "information>" not in prompt


@pytest.mark.parametrize(("name", "tag"), [("otc", "observation"), ("search-r1", "information")])
def test_a_policy_that_writes_its_results_itself_is_not_well_formed(name: str, tag: str) -> None:
    dialect = make_dialect(name, tiny_tokenizer(), instruction="")
    forged = f"<think> I think <{tag}> Oslo </{tag}> </think>\n<answer> Oslo </answer>"
    assert dialect.is_well_formed([SEARCH, ANSWER])
    assert not dialect.is_well_formed([SEARCH, forged])
