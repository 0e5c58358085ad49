"""The dialects of AFM's agents on questions: permitted orders of blocks, and parsing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.afm_grades import (
    CRITERIA,
    GRADES,
    make_double_check,
    make_reflection,
    parse_grades,
    parse_score,
)
from fieldcraft.types import Answer, MalformedCall, Thought, ThoughtRole, ToolCall, UserError

NAMES = ("afm-web", "afm-mhqa", "afm")
DIALECT = {name: make_dialect(name, tiny_tokenizer(), instruction="") for name in NAMES}
EVERY = pytest.mark.parametrize("name", NAMES)
T = "<think>\nSo.\n</think>\n"
PLAN = f"{T}<plan>\nSearch.\n</plan>\n"
WEB = f"{T}<web_search>\nwho\n</web_search>"
PAGE = f"{T}<crawl_page>\nhttp://a.b\n</crawl_page>"
WIKI = f"{T}<wiki_search>\nwho\n</wiki_search>"
CODE = f"{T}<code>\n```py\nprint(1)\n```\n</code>"
SUGGEST = f"{T}<suggested_answer>\nOslo\n</suggested_answer>\n"
ANSWER = f"{T}<answer>\nOslo\n</answer>"


def graded(*grades: str) -> str:
    return f"{T}<reflection>\n{make_reflection(grades).text}\n</reflection>\n"


def checked(score: object) -> str:
    return f"{T}<double_check>\nThe score this time is:{score}\n</double_check>\n"


GOOD, BAD = graded("Good", "Fair", "Average"), graded("Good", "Poor", "Fair")
FREE = f"{T}<reflection>\nIt fits.\n</reflection>\n"
END = SUGGEST + checked(4) + ANSWER


@pytest.mark.parametrize(
    ("name", "written", "move"),
    [
        ("afm-web", [WEB], ToolCall("search", {"query": "who"})),
        ("afm-web", [WEB + "\n"], ToolCall("search", {"query": "who"})),
        ("afm-web", [PAGE], ToolCall("crawl_page", {"url": "http://a.b"})),
        (
            "afm-web",
            [PAGE.replace("a.b", "a.b | c")],
            ToolCall("crawl_page", {"url": "http://a.b | c"}),
        ),
        ("afm-web", [WEB + PAGE], ToolCall("search", {"query": "who"})),  # the first ending
        ("afm-web", [WIKI], None),
        ("afm-web", [CODE], None),
        ("afm-web", [WEB, END], Answer("Oslo")),
        ("afm-web", [SUGGEST], None),  # no answer yet
        ("afm-web", ["<web_search> </web_search>"], MalformedCall),
        ("afm-web", ["who</web_search>"], MalformedCall),
        ("afm-web", ["<answer> </answer>"], None),
        ("afm-web", ["Oslo</answer>"], None),
        ("afm-web", [], None),
        ("afm-mhqa", [WIKI], ToolCall("search", {"query": "who"})),
        ("afm-mhqa", [WEB], None),
        ("afm-mhqa", [WIKI, ANSWER.replace("Oslo", "Oslo|Bergen")], Answer("Oslo|Bergen")),
        ("afm", [CODE], ToolCall("python", {"code": "print(1)"})),
        ("afm", ["<code>print(1)</code>"], MalformedCall),
        ("afm", [WEB], ToolCall("search", {"query": "who"})),
    ],
)
def test_parse(name: str, written: list[str], move: object) -> None:
    parsed = DIALECT[name].parse(written)
    if move is MalformedCall:
        [parsed] = parsed
        assert isinstance(parsed, MalformedCall)
    else:
        assert parsed == ((move,) if isinstance(move, ToolCall) else move)


@pytest.mark.parametrize(
    ("written", "well_formed"),
    [
        ([PLAN + WEB, END], True),
        ([WEB, END + "\n<|im_end|>"], True),  # no rule requires a plan at the start
        ([PLAN + WEB, PAGE, GOOD + WEB, GOOD + END], True),
        ([PLAN + WEB, BAD + PLAN + WEB, GOOD + END], True),
        ([PLAN + WEB, SUGGEST + checked(2) + PLAN + END], True),
        ([PLAN + SUGGEST + checked(3) + ANSWER], True),
        ([PLAN + END], True),
        ([PLAN + WEB, ANSWER], False),  # not suggested, not checked
        ([PLAN + WEB, SUGGEST + ANSWER], False),
        ([PLAN + WEB, SUGGEST + checked(2) + ANSWER], False),
        ([PLAN + WEB, SUGGEST + checked(2) + WEB, END], False),  # a low score requires a plan
        ([PLAN + WEB, SUGGEST + checked(4) + PLAN + END], False),
        ([PLAN + WEB, SUGGEST + checked(5) + ANSWER], False),
        ([PLAN + WEB, SUGGEST + checked("good") + ANSWER], False),
        ([PLAN + WEB, SUGGEST + SUGGEST + checked(4) + ANSWER], False),
        ([PLAN + WEB, checked(4) + ANSWER], False),  # nothing to check
        ([PLAN + WEB, BAD + WEB, END], False),  # a poor grade requires a plan
        ([PLAN + WEB, BAD + END], False),
        ([PLAN + WEB, FREE + END], False),  # without grades
        ([PLAN + WEB, GOOD.replace("tool_", "tools_") + END], False),
        ([PLAN + WEB, GOOD + GOOD + END], False),
        ([PLAN + WEB, PLAN + END], False),  # a plan must follow a reflection or a check
        ([PLAN + PLAN + WEB, END], False),
        ([GOOD + END], False),
        ([PLAN + WEB.removeprefix(T), END], False),  # no thought before the call
        ([PLAN.removeprefix(T) + WEB, END], False),
        ([PLAN + T + WEB, END], False),  # two thoughts
        ([PLAN + WEB, T + END], False),
        ([PLAN + WEB, END.removesuffix(ANSWER) + ANSWER.removeprefix(T)], False),
        ([PLAN + WEB, f"so {END}"], False),
        ([PLAN + WEB, END + "so"], False),
        ([PLAN + WEB + T, END], False),
        ([PLAN + WEB + PAGE, END], False),  # one call ends a turn
        ([PLAN, END], False),  # no call
        ([PLAN + WEB.replace("who", " "), END], False),
        ([PLAN + WEB, END.replace("Oslo", "")], False),
        ([PLAN + WIKI, END], False),
        ([PLAN + CODE, END], False),
        ([PLAN + WEB + "\n<observation>\n1\n</observation>\n\n", END], False),
        ([PLAN + WEB], False),
        ([END + T], False),
        ([], False),
    ],
)
def test_the_web_agents_grammar(written: list[str], well_formed: bool) -> None:
    assert DIALECT["afm-web"].is_well_formed(written) is well_formed
    with_code = [turn.replace(WEB, CODE) for turn in written]
    assert DIALECT["afm"].is_well_formed(written) is well_formed or CODE in "".join(written)
    assert DIALECT["afm"].is_well_formed(with_code) is well_formed or WEB not in "".join(written)


@pytest.mark.parametrize(
    ("written", "well_formed"),
    [
        ([ANSWER], True),
        ([PLAN + WIKI, ANSWER], True),
        ([PLAN.removeprefix(T) + WIKI, FREE.removeprefix(T) + WIKI, FREE + ANSWER], True),
        ([PLAN + WIKI, FREE + PLAN + WIKI, END], True),  # it may check its answer
        ([PLAN + WIKI, SUGGEST + checked(1) + PLAN + WIKI, GOOD + END], True),
        ([PLAN + WIKI, BAD + ANSWER], False),
        ([PLAN + WIKI, SUGGEST + ANSWER], False),
        ([PLAN + WIKI, SUGGEST + checked(1) + ANSWER], False),
        ([PLAN + WIKI.removeprefix(T), ANSWER], False),
        ([PLAN + WIKI, FREE.replace("It fits.", " ") + ANSWER], False),
        ([PLAN + WEB, ANSWER], False),
    ],
)
def test_the_grammar_of_the_agent_for_several_hops(written: list[str], well_formed: bool) -> None:
    assert DIALECT["afm-mhqa"].is_well_formed(written) is well_formed


def test_a_program_ends_its_turn() -> None:
    assert DIALECT["afm"].is_well_formed([PLAN + CODE, GOOD + PAGE, END])
    assert not DIALECT["afm"].is_well_formed([PLAN + CODE.replace("print(1)", ""), END])


@EVERY
def test_an_observation_and_the_prompt(name: str) -> None:
    dialect = DIALECT[name]
    assert dialect.render_observation("1") == "\n<observation>\n1\n</observation>\n\n"
    described = make_dialect(name, tiny_tokenizer()).default_instruction
    assert all(tag in described for tag in dialect.stop_strings for tag in [tag.replace("/", "")])
    numbers = [line.partition(".")[0] for line in described.splitlines() if line[:1].isdigit()]
    assert numbers == [str(n) for n in range(1, len(numbers) + 1)]
    tool = {"type": "function", "function": {"name": "population"}}
    with pytest.raises(UserError, match=r"can only call `search`.*, not `population`"):
        dialect.encode_prompt("who?", [tool])


@EVERY
@pytest.mark.parametrize(
    "action",
    [
        ToolCall("population", {"city": "Oslo"}),
        ToolCall("search", {"query": "x", "topk": 3}),
        ToolCall("python", {"program": "x"}),
        ToolCall("python", {"code": "'</code>'"}),
    ],
)
def test_what_cannot_be_read_back_is_not_written(name: str, action: ToolCall) -> None:
    with pytest.raises(UserError, match=f"The dialect {name} can only write"):
        DIALECT[name].render_call(action)


def test_a_role_without_a_tag_is_thinking() -> None:
    thoughts = [Thought("a"), Thought("b", ThoughtRole.SUGGEST), Thought("c", ThoughtRole.PLAN)]
    code = make_dialect("afm-code", tiny_tokenizer(), instruction="")
    assert code.render_thoughts(thoughts) == "<think>\na\n\nb\n</think>\n<plan>\nc\n</plan>\n"


@given(grades=st.tuples(*[st.sampled_from(GRADES)] * 3), score=st.integers(-9, 99))
def test_grades_and_scores_come_back(grades: tuple[str, ...], score: int) -> None:
    reflection = make_reflection(grades)
    assert reflection.role is ThoughtRole.REFLECT
    assert list(parse_grades(reflection.text)) == list(CRITERIA)
    assert [grade.title() for grade in parse_grades(reflection.text).values()] == list(grades)
    assert parse_score(make_double_check(score).text) == (score if 1 <= score <= 4 else None)
