"""The dialects of code agents: programs, answers, and text that is neither."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer
from fieldcraft.dialects import make_dialect
from fieldcraft.types import Answer, MalformedCall, ToolCall, UserError

NAMES = ("torl", "retool", "afm-code")
DIALECT = {name: make_dialect(name, tiny_tokenizer(), instruction="") for name in NAMES}
EVERY = pytest.mark.parametrize("name", NAMES)
FENCE = "```"
RUN = ToolCall("python", {"code": "print(1)"})
TORL = f"So:\n{FENCE}python\nprint(1)\n{FENCE}\n{FENCE}output"
RETOOL = f"So:\n<code>\n{FENCE}python\nprint(1)\n{FENCE}\n</code>"
CODE = f"<code>\n{FENCE}py\nprint(1)\n{FENCE}\n</code>"
THINK = "<think>\nSo.\n</think>\n"
PLAN, REFLECTION = "<plan>\nRun it.\n</plan>\n", "<reflection>\nFine.\n</reflection>\n"
FIRST, NEXT = PLAN + THINK + CODE, REFLECTION + THINK + CODE
END = REFLECTION + THINK + "<answer>\n\\boxed{1}\n</answer>"
NO_PROGRAM = MalformedCall(
    "The program is empty: write Python that prints what you want to know.", "python"
)


@pytest.mark.parametrize(
    ("name", "written", "move"),
    [
        ("torl", [TORL], RUN),
        ("torl", [TORL + "\n"], RUN),
        ("torl", [TORL.replace("print(1)", "  a\n\n\tb\n")], "  a\n\n\tb\n"),
        ("torl", [f"{FENCE}python\nx\n{FENCE}\n or rather\n" + TORL], RUN),  # the last program
        ("torl", [f"{FENCE}\nnot Python\n" + TORL], RUN),
        ("torl", [TORL.replace("print(1)", " ")], NO_PROGRAM),
        ("torl", [f"{FENCE}python\n{FENCE}\n{FENCE}output"], NO_PROGRAM),
        ("torl", [TORL.replace("python", "py")], MalformedCall),
        ("torl", [f"in {FENCE}python\nx\n{FENCE}\n{FENCE}output"], MalformedCall),
        ("torl", [f"{FENCE}python\nprint(1)\n{FENCE}output"], MalformedCall),  # never ended
        ("torl", [f"{FENCE}output"], MalformedCall),
        ("torl", [f"{FENCE}output {TORL}"], MalformedCall),  # only the text before the output
        ("torl", [TORL, "So \\boxed{1}."], Answer("1")),
        ("torl", ["\\boxed{1} I test it.\n" + TORL, "It is so."], Answer("1")),
        ("torl", [TORL.replace("1", "r'\\boxed{2}'"), "It is so."], None),
        ("torl", [f"\\boxed{{1}}\n{FENCE}python\n\\boxed{{2}}"], Answer("1")),
        ("torl", [f"\\boxed{{1}}\n{FENCE}python\n\\boxed{{2}}\n{FENCE}\nso"], Answer("1")),
        ("torl", [f"{FENCE}python\nprint(1)\n{FENCE}\nI stop."], None),
        ("torl", ["\\bo", "xed{1}"], None),
        ("torl", ["<think>\\boxed{1}</think> It is \\boxed{2}."], Answer("2")),
        ("torl", ["<think>\\boxed{1}</think> It is so."], None),
        ("torl", ["<think>\\boxed{1}\n" + TORL, "</think> It is \\boxed{2}."], Answer("2")),
        ("torl", ["<think>\\boxed{1}\n" + TORL], RUN),
        ("retool", ["<think><answer>\\boxed{1}</answer>"], None),
        (
            "retool",
            ["<think><answer>\\boxed{1}</answer></think><answer>\\boxed{2}</answer>"],
            Answer("2"),
        ),
        ("retool", ["<think>\\boxed{1}</think> It is so."], None),
        ("retool", ["<think>I run <code>\nprint(1)\n</code>"], RUN),
        ("torl", [], None),
        ("retool", [RETOOL], RUN),
        ("retool", [RETOOL + "\n\n"], RUN),
        ("retool", ["<code>\nprint(1)\n</code>"], RUN),
        ("retool", ["<code>print(1)</code>"], RUN),
        ("retool", [RETOOL.replace("python", "py")], RUN),
        ("retool", [RETOOL.replace("python", "python3")], RUN),
        ("retool", [RETOOL.replace("python", "Python")], RUN),
        ("retool", [RETOOL.replace("print(1)", "  a\n\n\tb\n")], "  a\n\n\tb\n"),
        ("retool", ["<code>\n</code>"], NO_PROGRAM),
        ("retool", ["print(1)</code>"], MalformedCall),
        ("retool", ["<answer>\\boxed{1}</answer>"], Answer("1")),
        ("retool", ["<answer>\\boxed{1}</answer> <code>x</code>"], Answer("1")),
        ("retool", ["<code>print(1)</code><answer>\\boxed{1}</answer>"], RUN),
        ("retool", ["\\boxed{2} <answer>\\boxed{1}</answer> \\boxed{3}"], Answer("1")),
        ("retool", ["It is \\boxed{1}."], Answer("1")),
        ("retool", ["<code>print('\\boxed{1}')"], None),
        ("retool", ["<answer>1</answer>"], None),  # ReTool reads boxes
        ("retool", ["\\boxed{1}", "so"], None),
        ("retool", [], None),
        ("afm-code", [FIRST], RUN),
        ("afm-code", [FIRST + "\n"], RUN),
        ("afm-code", [CODE.replace("py", "python")], RUN),
        ("afm-code", [CODE.replace("print(1)", "  a\n\n\tb\n")], "  a\n\n\tb\n"),
        ("afm-code", [CODE.replace("print(1)", "")], NO_PROGRAM),
        (
            "afm-code",
            [CODE.replace("\n</code>", f"\n{FENCE}sh\n1 2\n{FENCE}\n</code>")],
            ToolCall("python", {"code": "print(1)", "stdin": "1 2"}),
        ),
        (
            "afm-code",
            [CODE.replace("\n</code>", f"\n{FENCE}py\nx\n{FENCE}\n</code>")],
            MalformedCall,
        ),
        ("afm-code", [CODE.replace("<code>", "<code>so")], MalformedCall),
        ("afm-code", ["<code>print(1)</code>"], MalformedCall),
        ("afm-code", [f"{FENCE}py\nprint(1)\n{FENCE}\n</code>"], MalformedCall),
        ("afm-code", [FIRST, END], Answer("1")),
        ("afm-code", ["<answer> Oslo </answer>"], Answer("Oslo")),
        ("afm-code", [f"<answer>\n{FENCE}py\na\n b\n{FENCE}\n</answer>"], Answer("a\n b")),
        ("afm-code", ["<answer>\\boxed{1}</answer>" + CODE], Answer("1")),
        ("afm-code", [CODE + "<answer>\\boxed{1}</answer>"], RUN),
        ("afm-code", ["It is \\boxed{1}."], None),
        ("afm-code", ["1 </answer>"], None),
        ("afm-code", ["<answer> </answer>"], None),
        ("afm-code", ["<answer> 1"], None),
        ("afm-code", [], None),
    ],
)
def test_parse(name: str, written: list[str], move: object) -> None:
    parsed = DIALECT[name].parse(written)
    if move is MalformedCall:
        [parsed] = parsed
        assert isinstance(parsed, MalformedCall)
        assert parsed.reason.startswith("There is nothing to run: ")
    elif isinstance(move, str):
        assert parsed == (ToolCall("python", {"code": move}),)
    else:
        assert parsed == ((move,) if isinstance(move, ToolCall | MalformedCall) else move)


@pytest.mark.parametrize(
    ("name", "written", "well_formed"),
    [
        ("torl", ["It is \\boxed{1}."], True),
        ("torl", [TORL, TORL + "\n", "\\boxed{1}<|im_end|>"], True),
        ("torl", [f"{FENCE}\nx\n{FENCE}\n" + TORL, "\\boxed{1}"], True),
        ("torl", [TORL], False),
        ("torl", [TORL, "It is 1."], False),
        ("torl", [TORL.replace(f"\n{FENCE}output", f"\nso\n{FENCE}output"), "\\boxed{1}"], False),
        ("torl", [f"{FENCE}output", "\\boxed{1}"], False),
        ("torl", [f"{FENCE}python\nprint(1)\n{FENCE}\n\\boxed{{1}}"], False),  # never run
        ("torl", [TORL.replace("print(1)", ""), "\\boxed{1}"], False),
        ("retool", ["<answer>\\boxed{1}</answer>"], True),
        ("retool", [RETOOL, "<code>x</code>\n", "So <answer>\\boxed{1}</answer>\n"], True),
        ("retool", [RETOOL], False),
        ("retool", [RETOOL, "\\boxed{1}"], False),
        ("retool", [RETOOL, "<answer>1</answer>"], False),
        ("retool", ["<code> </code>", "<answer>\\boxed{1}</answer>"], False),
        ("retool", ["<interpreter>1</interpreter><answer>\\boxed{1}</answer>"], False),
        ("retool", ["<answer>\\boxed{1}</answer>" * 2], False),
        ("afm-code", [FIRST, END], True),
        ("afm-code", [FIRST, NEXT + "\n", END + "\n"], True),
        ("afm-code", [PLAN + THINK + "<answer>1</answer>"], True),
        ("afm-code", [THINK + CODE, END], False),  # without a plan
        ("afm-code", [PLAN + CODE, END], False),  # no thought before the program
        ("afm-code", [THINK + FIRST, END], False),  # the plan is not first
        ("afm-code", [FIRST, PLAN + END], False),  # a second plan
        ("afm-code", [FIRST, THINK + CODE, END], False),  # without a reflection
        ("afm-code", [FIRST, END.removeprefix(REFLECTION)], False),
        ("afm-code", [FIRST, REFLECTION + "<answer>1</answer>"], False),  # without a last thought
        ("afm-code", [FIRST.replace("```py", "```python"), END], False),
        ("afm-code", [FIRST.replace("print(1)", ""), END], False),
        ("afm-code", [FIRST.replace("</plan>", "</plan> and"), END], False),
        ("afm-code", [FIRST + "<observation>1</observation>", END], False),
        ("afm-code", [FIRST], False),
        ("afm-code", [], False),
    ],
)
def test_well_formed(name: str, written: list[str], well_formed: bool) -> None:
    assert DIALECT[name].is_well_formed(written) is well_formed


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("torl", "\n1\n```\n"),
        ("retool", "\n<interpreter>\n1\n</interpreter>\n"),
        ("afm-code", "\n<observation>\n1\n</observation>\n\n"),
    ],
)
def test_observation_block(name: str, block: str) -> None:
    assert DIALECT[name].render_observation("1") == block


lines = st.lists(
    st.sampled_from(("", "x = 1", "    y", "\tz", "`", "``", " ```", "</", "a < b", "print('é')"))
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
)


@EVERY
@given(code=lines.map("\n".join), before=st.sampled_from(("", "I run it.", "I run\n\nit.")))
def test_a_program_comes_back_or_is_refused(name: str, code: str, before: str) -> None:
    dialect = DIALECT[name]
    fits = bool(code.strip()) and not any(line.startswith(FENCE) for line in code.split("\n"))
    if not fits or any(tag in code for tag in dialect.tags):
        return
    action = ToolCall("python", {"code": code})
    assert dialect.parse([dialect.render_thought(before) + dialect.render_call(action)]) == (
        action,
    )


@given(code=lines.map("\n".join), stdin=lines.map("\n".join))
def test_an_input_comes_back(code: str, stdin: str) -> None:
    if not code.strip() or FENCE in code + stdin or "</code>" in code + stdin:
        return
    dialect = DIALECT["afm-code"]
    action = ToolCall("python", {"code": code, "stdin": stdin})
    assert dialect.parse([dialect.render_call(action)]) == (action,)


@EVERY
@pytest.mark.parametrize(
    "action",
    [
        ToolCall("search", {"query": "x"}),
        ToolCall("python", {"code": " "}),
        ToolCall("python", {"program": "x"}),
        ToolCall("python", {"code": "x", "files": "y"}),
        ToolCall("python", {"code": "'''\n```\n'''"}),
    ],
)
def test_what_cannot_be_read_back_is_not_written(name: str, action: ToolCall) -> None:
    with pytest.raises(UserError, match=f"{name} can only write python"):
        DIALECT[name].render_call(action)


@pytest.mark.parametrize(
    ("name", "code"),
    [("torl", "s = '```output'"), ("retool", "s = '</code>'"), ("afm-code", "s = '</answer>'")],
)
def test_a_program_with_a_stop_string_is_not_written(name: str, code: str) -> None:
    with pytest.raises(UserError, match="change the program"):
        DIALECT[name].render_call(ToolCall("python", {"code": code}))


def test_an_input_is_refused_where_the_dialect_has_no_place_for_it() -> None:
    for name in ("torl", "retool"):
        with pytest.raises(UserError, match=r"can only write python\(code\)"):
            DIALECT[name].render_call(ToolCall("python", {"code": "x", "stdin": "1"}))


@EVERY
def test_other_tools_are_refused(name: str) -> None:
    tool = {"type": "function", "function": {"name": "search"}}
    with pytest.raises(UserError, match="can only call `python`, not `search`"):
        DIALECT[name].encode_prompt("who?", [tool])


def test_a_program_as_answer_of_afm() -> None:
    dialect = DIALECT["afm-code"]
    code = "n = int(input())\nprint(f'{n}')"
    assert dialect.render_answer(code) == f"<answer>\n{FENCE}py\n{code}\n{FENCE}\n</answer>"
    assert dialect.parse([dialect.render_answer(code)]) == Answer(code)
