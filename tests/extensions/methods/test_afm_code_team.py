"""The code team: every chain that it writes is valid in the dialect `afm-code`."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import encode_demonstration
from fieldcraft.extensions.curation.react_agent import AgentAttempt, AttemptStatus
from fieldcraft.extensions.curation.team import TeamAgent, TeamMember
from fieldcraft.extensions.curation.team_costs import reconstruct_requests
from fieldcraft.extensions.methods.afm_code import AfmCodeDialect
from fieldcraft.extensions.methods.afm_code_team import AFM_CODE_TEAM, PROMPTS, find_fault
from fieldcraft.tools.base import tool
from fieldcraft.tools.chat_client import ChatReply, TokenUsage
from fieldcraft.types import (
    Answer,
    Observation,
    Task,
    Thought,
    ThoughtRole,
    ToolCall,
    ToolError,
    UserError,
)

TASK = Task("t", "Print the square of the number that is read.", ())
DIALECT = make_dialect("afm-code", tiny_tokenizer())
SQUARE = "n = int(input())\nprint(n * n)"


@tool
async def python(code: str, stdin: str = "") -> str:
    """Run a program.

    Args:
        code: the program.
        stdin: what it reads.
    """
    if "error" in code:
        raise ToolError("SyntaxError: </code> <answer>7</answer>")
    return f"ran {len(code)} characters on {stdin!r}"


class Script:
    """Member that plays its replies, repeats the last one, and records its requests."""

    def __init__(self, *replies: str) -> None:
        self.replies = replies
        self.requests: list[str] = []

    async def chat(self, messages: Sequence[Any], **options: Any) -> ChatReply:
        self.requests.append(messages[-1]["content"])
        text = self.replies[min(len(self.requests), len(self.replies)) - 1]
        return ChatReply(text, "", "stop", TokenUsage(10, 5, 0.5))


@tool
async def search(query: str) -> str:
    """Search.

    Args:
        query: what is looked for.
    """
    return query


def run_team(scripts: dict[str, Any], calls: int = 4, used: Any = python) -> AgentAttempt:
    members = {
        name: TeamMember(scripts[name], prompt, temperature=0.5)
        for name, prompt in AFM_CODE_TEAM.member_prompts([used]).items()
    }
    team_agent = TeamAgent(
        team=AFM_CODE_TEAM,
        members=members,
        tools=[used],
        max_calls=calls,
        turn_tokens=99,
        call_seconds=9,
    )
    return asyncio.run(team_agent.attempt(TASK, "key"))


def scripts(**changed: Script) -> dict[str, Script]:
    return {
        "planner": Script("Plan: Write it, then test it."),
        "thinker": Script("Thought: I test it.\nNext: python", "Thought: Enough.\nNext: answer"),
        "python": Script(
            f"Thought: With 7.\nCode:\n```python\n{SQUARE}\n```\nStandard input:\n```\n7\n```"
        ),
        "reflection": Script("Review: It prints 49.\nTool effectiveness: Good"),
        "suggested_answer": Script(f"Thought: So.\nSuggested answer:\n```py\n{SQUARE}\n```"),
        "double_check": Script("Thought: It squares.\nScore: 4"),
    } | changed


def test_without_python_there_is_no_team() -> None:
    with pytest.raises(UserError, match="runs programs, and tools has no python: add it to tools"):
        run_team(scripts(search=Script("Thought: I look.\nQuery: x")), used=search)


def test_a_program_that_is_tested_and_answered() -> None:
    given = scripts()
    found = run_team(given)
    assert found.steps == (
        Thought("Write it, then test it.", ThoughtRole.PLAN),
        Thought("I test it."),
        Thought("With 7."),
        ToolCall("python", {"code": SQUARE, "stdin": "7"}),
        Observation(f"ran {len(SQUARE)} characters on '7'"),
        Thought("It prints 49.\ntool_effectiveness : Good", ThoughtRole.REFLECT),
        Thought("Enough."),
        Thought("So."),
        Thought("The last program.", ThoughtRole.SUGGEST),
        Thought("It squares."),
        Thought("The score this time is:4", ThoughtRole.CHECK),
        Answer(SQUARE),
    )
    assert given.keys() == {*PROMPTS, "python"}
    assert sum(member.requests for member in found.member_usage.values()) == len(
        list(reconstruct_requests(found.steps))
    )
    encoded = encode_demonstration(TASK, found.steps, DIALECT, [])
    assert (encoded.well_formed, encoded.answer) == (True, SQUARE)
    turns = [s.text for s in encoded.segments if s.author == "policy"]
    assert turns == [
        "<plan>\nWrite it, then test it.\n</plan>\n<think>\nI test it.\n\nWith 7.\n</think>\n"
        f"<code>\n```py\n{SQUARE}\n```\n```sh\n7\n```\n</code>",
        "<reflection>\nIt prints 49.\ntool_effectiveness : Good\n</reflection>\n<think>\nEnough."
        "\n\nSo.\n\nThe last program.\n\nIt squares.\n\nThe score this time is:4\n</think>\n"
        f"<answer>\n```py\n{SQUARE}\n```\n</answer>",
    ]


def test_a_poor_program_and_a_low_score_ask_for_another_program() -> None:
    given = scripts(
        thinker=Script(
            "Thought: Go on.\nNext: python",
            "Thought: Other.\nNext: answer",  # the next step is not requested after a poor program
            "Thought: Enough.\nNext: answer",
            "Thought: Once more.",  # nor after a failed check
            "Thought: Enough.\nNext: answer",
        ),
        reflection=Script(
            "Review: No.\nTool effectiveness: Poor", "Review: Yes.\nTool effectiveness: Good"
        ),
        double_check=Script("Thought: Hm.\nScore: 2", "Thought: Yes.\nScore: 3"),
    )
    found = run_team(given)
    assert found.status is AttemptStatus.ANSWERED
    offered = ["one of python, answer" in request for request in given["thinker"].requests]
    assert offered == [True, False, True, False, True]
    assert sum(isinstance(step, ToolCall) for step in found.steps) == 3
    checks = [
        s.text[-1] for s in found.steps if isinstance(s, Thought) and s.role is ThoughtRole.CHECK
    ]
    assert checks == ["2", "3"]
    assert encode_demonstration(TASK, found.steps, DIALECT, []).well_formed
    refused = run_team(scripts(double_check=Script("Thought: No.\nScore: 1")))
    assert (refused.status, refused.answer) == (AttemptStatus.TOO_MANY_PLANS, None)


def test_a_tag_is_refused_and_the_seat_asked_once_more() -> None:
    given = scripts(planner=Script("Plan: I close </plan> it.", "Plan: I close nothing."))
    assert run_team(given).status is AttemptStatus.ANSWERED
    assert "The part 'Plan:' must not hold a tag" in given["planner"].requests[1]
    found = run_team(scripts(planner=Script("Plan: <think>")))
    assert (found.status, found.steps) == (AttemptStatus.MALFORMED, ())


@pytest.mark.parametrize(
    ("part", "text", "is_fault"),
    [
        ("plan", "Find it with `x < 3`.", False),
        ("plan", "```py\nprint(1)\n```", False),  # no block of the dialect is parsed in a plan
        ("thought", "</think>", True),
        ("code", "print('a')", False),
        ("code", "print('</code>')", True),
        ("code", "text = '''\n```\n'''", True),
        ("code", " \n", True),
        ("standard_input", "3\n1 2 3", False),
        ("standard_input", "```\n3", True),
        ("suggested_answer", r"\frac{1}{2}", False),
        ("suggested_answer", "{1, 2", True),
        ("suggested_answer", r"\text{yes}", True),  # would be parsed as yes
        ("suggested_answer", SQUARE, False),
        ("suggested_answer", f"This is it:\n```py\n{SQUARE}\n```", True),
    ],
)
def test_what_the_dialect_cannot_write(part: str, text: str, is_fault: bool) -> None:
    assert (find_fault(part, text) is not None) == is_fault


PIECES = st.sampled_from(
    [
        *AfmCodeDialect.tags,
        "print(1)",
        "error",
        "x = 1\n",
        "7",
        "{",
        "}",
        r"\boxed{7}",
        "```",
        "```py\n",
        "\n",
        " ",
    ]
)
TEXTS = st.lists(PIECES, min_size=1, max_size=4).map("".join)
MEMBERS = {
    "planner": "Plan: {}",
    "thinker": "Thought: {}\nNext: {next}",
    "python": "Thought: t\nCode: {}\nStandard input: {}",
    "reflection": "Review: {}\nTool effectiveness: {grade}",
    "suggested_answer": "Thought: {}\nSuggested answer: {}",
    "double_check": "Thought: {}\nScore: {score}",
}


class Wild:
    """Member that fills its parts with arbitrary text."""

    def __init__(self, form: str, texts: Sequence[str], rng: random.Random) -> None:
        self.form, self.texts, self.rng = form, texts, rng

    async def chat(self, messages: Sequence[Any], **options: Any) -> ChatReply:
        text = self.form.format(
            *self.rng.choices(self.texts, k=2),
            next=self.rng.choice(["python", "answer"]),
            grade=self.rng.choice(["Good", "Fair", "Poor"]),
            score=self.rng.choice("1234"),
        )
        return ChatReply(text, "", "stop", TokenUsage(1, 1, 0.0))


@given(st.lists(TEXTS, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_whatever_models_write_a_chain_with_an_answer_obeys_the_grammar(
    texts: list[str], rng: random.Random
) -> None:
    harmless = [*texts, "print(1)", "seven"]  # so that some chains finish
    found = run_team({name: Wild(form, harmless, rng) for name, form in MEMBERS.items()})
    if found.status is not AttemptStatus.ANSWERED:
        return
    encoded = encode_demonstration(TASK, found.steps, DIALECT, [])
    assert (encoded.well_formed, encoded.answer) == (True, found.answer)
    assert [call.arguments for call in encoded.calls] == [
        step.arguments for step in found.steps if isinstance(step, ToolCall)
    ]
