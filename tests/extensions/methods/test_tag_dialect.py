"""A dialect that states only its tags."""

from dataclasses import dataclass

import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.extensions.methods.tag_dialect import TagDialect, TagSpec, make_call_tags
from fieldcraft.types import Answer, MalformedCall, Thought, ThoughtRole, ToolCall, UserError


@dataclass(frozen=True)
class Look(TagDialect):
    name = "look"
    spec = TagSpec(
        (make_call_tags("look", "search", "query"), make_call_tags("open", "crawl_page", "url")),
        result="found",
        roles=("think",),
        answer="final",
    )
    delimiters = ("\n<found>", "</found>\n")
    padding = " "
    default_instruction = "Look."


@dataclass(frozen=True)
class Glance(Look):
    name = "glance"
    default_instruction = "Glance."


@pytest.fixture(params=[Look, Glance], ids=["own", "inherited"])
def dialect(request: pytest.FixtureRequest) -> BaseDialect:
    cls: type[BaseDialect] = request.param
    return cls(tiny_tokenizer())


LOOKED = "<think> so </think>\n<look> who </look>"
OPENED = "<think> so </think>\n<open> here </open>"
FINAL = "<think> so </think>\n<final> Oslo </final>"


def test_tags_and_ends_follow_from_the_spec(dialect: BaseDialect) -> None:
    names = ("think", "look", "open", "found", "final")
    assert dialect.tags == tuple(tag for name in names for tag in (f"<{name}>", f"</{name}>"))
    assert dialect.stop_strings == ("</look>", "</open>", "</final>")
    assert dialect.callable_tools == ("search", "crawl_page")


def test_turns_are_written_and_read_back(dialect: BaseDialect) -> None:
    search, crawl = ToolCall("search", {"query": "who"}), ToolCall("crawl_page", {"url": "here"})
    thought = dialect.render_thoughts([Thought("so", ThoughtRole.PLAN)])
    assert thought + dialect.render_call(search) == LOOKED
    assert thought + dialect.render_call(crawl) == OPENED
    assert thought + dialect.render_answer("Oslo") == FINAL
    assert dialect.parse([f"{LOOKED}\n"]) == (search,)
    assert dialect.parse([LOOKED, OPENED]) == (crawl,)
    assert dialect.parse([LOOKED, FINAL]) == Answer("Oslo")
    assert dialect.parse(["<think> so"]) is None


def test_a_call_without_text_or_inside_a_thought_is_malformed(dialect: BaseDialect) -> None:
    empty = MalformedCall("Nothing to search for: write <open> url </open>.", "crawl_page")
    assert dialect.parse(["<open> </open>"]) == (empty,)
    inside = "A call stands after the thought: write </think> before <look>."
    assert dialect.parse(["<think> so <look> who </look>"]) == (MalformedCall(inside, "search"),)


def test_the_grammar_is_rounds_and_an_answer(dialect: BaseDialect) -> None:
    assert dialect.is_well_formed([LOOKED, OPENED, FINAL])
    assert dialect.is_well_formed([FINAL])
    assert not dialect.is_well_formed([LOOKED])
    assert not dialect.is_well_formed(["<look> who </look>", FINAL])
    assert not dialect.is_well_formed(["<think> so </think>\n<look> </look>", FINAL])
    assert not dialect.is_well_formed([f"{FINAL}{FINAL}"])


def test_other_tools_are_refused(dialect: BaseDialect) -> None:
    with pytest.raises(UserError, match=r"can only write search\(query\), crawl_page\(url\), not"):
        dialect.render_call(ToolCall("python", {"code": "1"}))
    tool = {"type": "function", "function": {"name": "python"}}
    with pytest.raises(UserError, match="can only call `search` and `crawl_page`, not `python`"):
        dialect.encode_prompt("who?", [tool])
