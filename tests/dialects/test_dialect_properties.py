"""Properties that hold for arbitrary texts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer
from dialect_parts import ACTING, action_of, checks_of, thoughts_of
from fieldcraft.config.components import BUILTIN_COMPONENTS, ComponentKind
from fieldcraft.dialects import make_dialect
from fieldcraft.types import Answer, ObservationPosition, ThoughtRole, ToolCall

DIALECTS = BUILTIN_COMPONENTS[ComponentKind.DIALECT]
DIALECT_OF = {name: make_dialect(name, tiny_tokenizer(), instruction="") for name in DIALECTS}
NAMES = pytest.mark.parametrize("name", DIALECTS)
EVERY_ACTING = pytest.mark.parametrize("name", ACTING)
PARTS = sorted(
    {
        part
        for dialect in DIALECT_OF.values()
        for tag in (*dialect.tags, "<answer>", "</answer>", "\\boxed{", "}", "<|im_end|>", "\0")
        for part in (tag, tag[:3])
    }
)
tagged = st.lists(st.sampled_from(PARTS) | st.text(max_size=5)).map("".join)
plain = st.text(st.characters(exclude_characters="<>{}\\`", exclude_categories=["Cs"])).map(
    str.strip
)


@NAMES
@settings(deadline=None)
@given(turns=st.lists(tagged))
def test_parse_and_grammar_never_raise_and_agree(name: str, turns: list[str]) -> None:
    dialect = DIALECT_OF[name]
    parsed = dialect.parse(turns)
    assert not dialect.is_well_formed(turns) or isinstance(parsed, Answer)


@EVERY_ACTING
@settings(deadline=None)
@given(query=plain.filter(bool), thought=plain, surplus=st.sampled_from(["", "\n\n", " "]))
def test_action_comes_back(name: str, query: str, thought: str, surplus: str) -> None:
    dialect = DIALECT_OF[name]
    action = action_of(name, query)
    turn = dialect.render_thought(thought) + dialect.render_call(action)
    assert turn.endswith(dialect.stop_strings or "</tool_call>")
    assert dialect.parse([turn + surplus]) == (action,)


@EVERY_ACTING
@settings(deadline=None)
@given(answer=plain.filter(bool), thought=plain.filter(bool), query=plain.filter(bool))
def test_answer_comes_back_and_is_well_formed(
    name: str, answer: str, thought: str, query: str
) -> None:
    dialect = DIALECT_OF[name]
    answered, planned, reflected = (
        dialect.render_thoughts(thoughts_of(name, thought, role))
        for role in (ThoughtRole.THINK, ThoughtRole.PLAN, ThoughtRole.REFLECT)
    )
    if not name.startswith("afm"):  # the others have no rules for roles
        assert answered == planned == reflected
    call, final = dialect.render_call(action_of(name, query)), dialect.render_answer(answer)
    checks = dialect.render_thoughts(checks_of(name, thought))
    last = reflected + checks + final
    for turns in (
        [planned + checks + final],
        [planned + call, last],
        [planned + call, reflected + call, last + "<|im_end|>"],
    ):
        assert dialect.parse(turns) == Answer(answer)
        assert dialect.is_well_formed(turns) == ("\0" not in "".join(turns))


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | tagged,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@settings(deadline=None)
@given(tool=tagged.filter(bool), arguments=st.dictionaries(tagged, values))
def test_json_calls_hold_any_text(tool: str, arguments: dict[str, object]) -> None:
    action = ToolCall(tool, arguments)
    dialect = DIALECT_OF["hermes"]
    assert dialect.parse([dialect.render_call(action)]) == (action,)


@settings(deadline=None)
@given(thought=plain, queries=st.lists(plain.filter(bool), min_size=1, max_size=4), answer=plain)
def test_several_calls_come_back_and_are_well_formed(
    thought: str, queries: list[str], answer: str
) -> None:
    dialect = DIALECT_OF["hermes"]
    actions = [ToolCall("search", {"query": query}) for query in queries]
    turn = dialect.render_thought(thought) + dialect.render_calls(actions) + "<|im_end|>"
    assert dialect.parse([turn]) == tuple(actions)
    turns = [turn, dialect.render_answer(answer or "x")]
    assert dialect.is_well_formed(turns) == ("\0" not in "".join(turns))


@settings(deadline=None)
@given(texts=st.lists(tagged, min_size=1, max_size=4))
def test_several_observations_are_frames_and_plain_text(texts: list[str]) -> None:
    dialect = DIALECT_OF["hermes"]

    places = [ObservationPosition(i, len(texts)) for i in range(len(texts))]
    observations = zip(texts, places, strict=True)
    ids = [i for text, place in observations for i in dialect.encode_observation(text, place)]
    whole = "".join(map(dialect.render_observation, texts, places))
    assert dialect.tokenizer.decode(ids) == whole
    harmless = [i for place in places for i in dialect.encode_observation("x", place)]
    assert [i for i in ids if i <= 2] == [i for i in harmless if i <= 2]


@NAMES
@settings(deadline=None)
@given(text=tagged)
def test_observation_ids_are_frame_and_plain_text(name: str, text: str) -> None:
    dialect = DIALECT_OF[name]
    ids = dialect.encode_observation(text)
    assert dialect.tokenizer.decode(ids) == dialect.render_observation(text)
    special = [i for i in ids if i <= 2]
    assert special == [i for i in dialect.encode_observation("x") if i <= 2]
