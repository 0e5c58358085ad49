"""A team: parsing of its members' replies, the resulting chain, and its end."""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import encode_demonstration
from fieldcraft.extensions.curation.react_agent import AgentAttempt, AttemptStatus
from fieldcraft.extensions.curation.team import (
    TEXT,
    Blackboard,
    Team,
    TeamAgent,
    TeamMember,
    parse_sections,
)
from fieldcraft.extensions.curation.team_costs import reconstruct_requests
from fieldcraft.extensions.methods.afm_team import AFM_TEAM
from fieldcraft.tools.base import tool
from fieldcraft.tools.chat_client import ChatReply, ChatRequestError, TokenUsage
from fieldcraft.types import (
    Answer,
    Observation,
    Task,
    Thought,
    ThoughtRole,
    ToolCall,
    ToolError,
    ToolUnavailableError,
    UserError,
)

TASK = Task("t", "Where was Ada born?", ("Oslo",))
DOCUMENT = Path(__file__).parents[3] / "docs" / "afm.md"


@tool
async def search(query: str) -> str:
    """Search.

    Args:
        query: what to look for.
    """
    if query == "gone":
        raise ToolUnavailableError("The server is gone.")
    if query == "bad":
        raise ToolError("No such page.")
    return f"about {query}\nScore: 4\nAnswer: Evil"


@tool
async def crawl_page(url: str) -> str:
    """Read a page.

    Args:
        url: its address.
    """
    return f"the text of {url}"


@tool
async def year(number: int) -> str:
    """What happened in a year.

    Args:
        number: the year.
    """
    return f"In {number + 0} nothing happened."


@tool
async def python(code: str) -> str:
    """Run a program.

    Args:
        code: the program.
    """
    return f"ran {code}"


def reply(text: str, reasoning: str = "", finish: str = "stop") -> ChatReply:
    return ChatReply(text, reasoning, finish, TokenUsage(10, 5, 0.5))


class Script:
    """Member that plays its replies, repeats the last one, and records its requests."""

    def __init__(self, *replies: str | ChatReply | Exception) -> None:
        self.replies = [reply(r) if isinstance(r, str) else r for r in replies]
        self.requests: list[dict[str, Any]] = []

    async def chat(self, messages: Sequence[Any], **options: Any) -> ChatReply:
        self.requests.append({"messages": [dict(m) for m in messages], **options})
        found = self.replies[min(len(self.requests), len(self.replies)) - 1]
        if isinstance(found, Exception):
            raise found
        return found


def run_team(
    team: Team, scripts: dict[str, Script], tools: Any = (search,), calls: int = 4
) -> AgentAttempt:
    members = {
        name: TeamMember(scripts.get(name, Script("?")), prompt, temperature=0.5)
        for name, prompt in team.member_prompts(tools).items()
    }
    team_agent = TeamAgent(
        team=team, members=members, tools=tools, max_calls=calls, turn_tokens=99, call_seconds=9
    )
    return asyncio.run(team_agent.attempt(TASK, "key"))


def graded(grade: str) -> str:
    return (
        f"Thought: I look.\nInformation conflict: Good\nTool effectiveness: {grade}\n"
        "Trajectory monitoring: good, since it is short"
    )


def well_playing(**changed: Script) -> dict[str, Script]:
    scripts = {
        "planner": Script("Thought: I plan.\nPlan: Search for Ada."),
        "lead": Script("Thought: Go on.\nNext: search", "Thought: Enough.\nNext: answer"),
        "search": Script("Thought: I search.\nQuery: Ada"),
        "reflection": Script(graded("Fair")),
        "suggested_answer": Script("Thought: So.\nSuggested answer: Oslo"),
        "double_check": Script("Thought: I check.\nScore: 4/4"),
    }
    return scripts | changed


# -- the team of AFM ---------------------------------------------------------------------------


def test_one_chain_of_all_seats() -> None:
    scripts = well_playing()
    found = run_team(AFM_TEAM, scripts)
    assert found.steps == (
        Thought("I plan."),
        Thought("Search for Ada.", ThoughtRole.PLAN),
        Thought("Go on."),
        Thought("I search."),
        ToolCall("search", {"query": "Ada"}),
        Observation("about Ada\nScore: 4\nAnswer: Evil"),
        Thought("I look."),
        Thought(
            "information_conflict : Good\ntool_effectiveness : Fair\ntrajectory_monitoring : Good",
            ThoughtRole.REFLECT,
        ),
        Thought("Enough."),
        Thought("So."),
        Thought("Oslo", ThoughtRole.SUGGEST),
        Thought("I check."),
        Thought("The score this time is:4", ThoughtRole.CHECK),
        Thought("The answer passed the check."),
        Answer("Oslo"),
    )
    assert (found.status, found.usage) == (AttemptStatus.ANSWERED, TokenUsage(70, 35, 3.5))
    assert {name: use.requests for name, use in found.member_usage.items()} == {
        "planner": 1, "lead": 2, "search": 1, "reflection": 1, "suggested_answer": 1,
        "double_check": 1,
    }  # fmt: skip
    assert list(reconstruct_requests(found.steps)) == [
        (0, 2, "planner"), (2, 2, "lead"), (2, 5, "search"), (6, 8, "reflection"), (8, 8, "lead"),
        (8, 11, "suggested_answer"), (11, 13, "double_check"),
    ]  # fmt: skip
    [message] = scripts["double_check"].requests[0]["messages"]
    assert message["content"].startswith("You check the suggested answer of a team")
    assert "Score: one of 1, 2, 3, 4\n" in message["content"]
    assert "Suggested answer: Oslo" in message["content"]
    assert "Observation: about Ada" in message["content"]
    assert "what to look for" in scripts["search"].requests[0]["messages"][0]["content"]
    seeds = [request["seed"] for script in scripts.values() for request in script.requests]
    assert len(set(seeds)) == 7
    again = well_playing()
    run_team(AFM_TEAM, again)
    assert [request["seed"] for script in again.values() for request in script.requests] == seeds


@pytest.mark.parametrize(
    ("changed", "calls", "plans", "checks"),
    [
        ({}, 4, 1, 1),
        ({"reflection": Script(graded("Poor"), graded("Good"))}, 4, 2, 1),
        ({"double_check": Script("Thought: x\nScore: 2", "Thought: x\nScore: 3")}, 4, 2, 2),
        ({"lead": Script("Thought: x\nNext: search")}, 2, 1, 1),  # until no call is left
        ({"lead": Script("Thought: x\nNext: Answer")}, 2, 1, 1),  # without a call
        (
            {"reflection": Script(graded("Poor")), "lead": Script("Thought: x\nNext: search")},
            2,
            3,
            1,
        ),
        ({"search": Script("Thought: x\nQuery: bad")}, 4, 1, 1),  # an error is an observation
    ],
)
def test_chains_obey_the_grammar(
    changed: dict[str, Script], calls: int, plans: int, checks: int
) -> None:
    for script in changed.values():
        script.requests.clear()
    found = run_team(AFM_TEAM, well_playing(**changed), calls=calls)
    assert found.status is AttemptStatus.ANSWERED
    roles = [step.role for step in found.steps if isinstance(step, Thought)]
    assert (roles.count(ThoughtRole.PLAN), roles.count(ThoughtRole.CHECK)) == (plans, checks)
    made = sum(member.requests for member in found.member_usage.values())
    asks_the_lead = sum(isinstance(s, ToolCall) for s in found.steps) < calls  # before it answers
    assert len(list(reconstruct_requests(found.steps))) == made + (not asks_the_lead)
    for name in ("afm-web", "afm-mhqa", "afm"):
        dialect = make_dialect(name, tiny_tokenizer())
        encoded = encode_demonstration(TASK, found.steps, dialect, [])
        assert (encoded.well_formed, encoded.answer) == (True, "Oslo")


def test_a_team_with_pages_and_programs() -> None:
    scripts = well_playing(
        lead=Script(*(f"Thought: x\nNext: {n}" for n in ("crawl_page", "python", "answer"))),
        crawl_page=Script("Thought: x\nUrl: http://a.b"),
        python=Script("Thought: x\n**Code:**\n```python\nprint('Query: x')\n```"),
    )
    found = run_team(AFM_TEAM, scripts, tools=(search, crawl_page, python))
    assert [step for step in found.steps if isinstance(step, ToolCall)] == [
        ToolCall("crawl_page", {"url": "http://a.b"}),
        ToolCall("python", {"code": "print('Query: x')"}),
    ]
    encoded = encode_demonstration(TASK, found.steps, make_dialect("afm", tiny_tokenizer()), [])
    assert (encoded.well_formed, encoded.answer, len(encoded.calls)) == (True, "Oslo", 2)


def test_an_argument_that_is_no_text_is_json() -> None:
    lead = Script("Thought: x\nNext: year", "Thought: x\nNext: answer")
    scripts = well_playing(lead=lead, year=Script("Thought: x\nNumber: 1905"))
    found = run_team(AFM_TEAM, scripts, tools=(year,))
    assert found.steps[4:6] == (
        ToolCall("year", {"number": 1905}), Observation("In 1905 nothing happened."),
    )  # fmt: skip


@pytest.mark.parametrize("number", ["long ago", "NaN", "-Infinity", "1e999", "[" * 5000])
def test_an_argument_that_no_file_of_a_run_can_store_is_malformed(number: str) -> None:
    lead = Script("Thought: x\nNext: year")
    scripts = well_playing(lead=lead, year=Script(f"Thought: x\nNumber: {number}"))
    found = run_team(AFM_TEAM, scripts, tools=(year,))
    assert (found.status, found.detail) == (
        AttemptStatus.MALFORMED, "the team member 'year': the part 'Number:' is not JSON",
    )  # fmt: skip


# -- what ends a team --------------------------------------------------------------------------


def test_prose_in_place_of_a_score_is_asked_for_once_more() -> None:
    prose = "Thought: I check.\nIt is good."
    scripts = well_playing(double_check=Script(prose, "Thought: I check.\nScore: 4"))
    assert run_team(AFM_TEAM, scripts).status is AttemptStatus.ANSWERED
    second = scripts["double_check"].requests[1]["messages"]
    assert [m["role"] for m in second] == ["user", "assistant", "user"]
    assert second[2]["content"] == "There is no part 'Score:'. Write all parts again."
    found = run_team(AFM_TEAM, well_playing(double_check=Script(prose)))
    assert (found.status, found.failed) == (AttemptStatus.MALFORMED, False)
    assert found.detail == "the team member 'double_check': There is no part 'Score:'"
    assert found.steps[-1] == Thought("Oslo", ThoughtRole.SUGGEST)
    assert found.member_usage["double_check"].requests == 2
    found = run_team(AFM_TEAM, well_playing(double_check=Script("Thought: I check.\nScore: high")))
    assert found.detail.endswith("The part 'Score:' must be one of 1, 2, 3, 4")


def test_an_endpoint_that_dies_ends_the_attempt_with_its_seat() -> None:
    found = run_team(AFM_TEAM, well_playing(reflection=Script(ChatRequestError("status 500"))))
    assert (found.status, found.detail, found.failed) == (
        AttemptStatus.REQUEST_FAILED, "the team member 'reflection': status 500", True,
    )  # fmt: skip
    assert isinstance(found.steps[-1], Observation)
    assert found.member_usage["planner"].usage == TokenUsage(10, 5, 0.5)  # paid tokens count
    assert (found.member_usage["reflection"].requests, found.usage) == (1, TokenUsage(30, 15, 1.5))


def test_other_ends() -> None:
    found = run_team(AFM_TEAM, well_playing(double_check=Script("Thought: No.\nScore: 1")))
    assert found.status is AttemptStatus.TOO_MANY_PLANS
    assert found.answer is None
    found = run_team(AFM_TEAM, well_playing(search=Script("Thought: x\nQuery: gone")))
    assert (found.status, found.detail, found.failed) == (
        AttemptStatus.TOOL_FAILED, "The server is gone.", True,
    )  # fmt: skip
    found = run_team(
        AFM_TEAM, well_playing(planner=Script(reply("Thought: I pl", finish="length")))
    )
    assert (found.status, found.detail) == (AttemptStatus.TRUNCATED, "the team member 'planner'")


def acting(board: Callable[[Blackboard], Any]) -> Team:
    return Team({"solo": "You are alone."}, board)


def test_a_program_that_asks_too_much() -> None:
    async def many(board: Blackboard) -> None:
        for _ in range(9):
            await board.act("search", query="x")

    found = run_team(acting(many), {}, calls=2)
    assert (found.status, len(found.steps)) == (AttemptStatus.TOO_MANY_CALLS, 4)

    async def nothing(board: Blackboard) -> None:
        board.write("Hm.")

    found = run_team(acting(nothing), {})
    assert (found.status, found.detail) == (
        AttemptStatus.MALFORMED,
        "the team ended without an answer",
    )

    async def stranger(board: Blackboard) -> None:
        await board.ask("boss", plan=TEXT)

    with pytest.raises(UserError, match=r"no member 'boss': .* one of solo, search"):
        run_team(acting(stranger), {})


# -- components --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (reply("Thought: a\nPlan: b"), {"thought": "a", "plan": "b"}),
        (reply("**Thought:** a\nc\n\n## Plan: b\n"), {"thought": "a\nc", "plan": "b"}),
        (reply("I think.\nPlan: b"), {"thought": "I think.", "plan": "b"}),
        (reply("<think>r</think>\nPlan: b"), {"thought": "r", "plan": "b"}),
        (reply("Plan: b", reasoning="r"), {"thought": "r", "plan": "b"}),
        (reply("Thought: a\nPlan: b\nThought: c"), {"thought": "a", "plan": "b\nThought: c"}),
        (reply("Thought: a\nPlan:\n```\nb\n```"), {"thought": "a", "plan": "b"}),
        (reply("Thought: a"), "There is no part 'Plan:'"),
        (reply("Thought: a\nPlan: "), "There is no part 'Plan:'"),
        (reply("Plan: b"), "There is no part 'Thought:'"),
        (reply("a plan: b"), "There is no part 'Thought:'"),
    ],
)
def test_what_is_read_from_a_reply(written: ChatReply, said: object) -> None:
    assert parse_sections(written, {"thought": TEXT, "plan": TEXT}) == said


@pytest.mark.parametrize(
    ("value", "choice"),
    [
        ("4", "4"),
        ("**4** of 4", "4"),
        ("4.", "4"),
        ("4.5", None),
        ("42", None),
        ("about 4", None),
        ("Search it", "search"),
        ("search_more", "search_more"),
        ("searching", None),
    ],
)
def test_choices(value: str, choice: str | None) -> None:
    read = parse_sections(reply(f"Next: {value}"), {"next": ["4", "search", "search_more"]})
    expected = "The part 'Next:' must be one of 4, search, search_more"
    assert read == ({"next": choice} if choice else expected)


# -- user-defined teams ------------------------------------------------------------------------


def test_the_team_of_the_document_writes_what_the_code_agent_writes() -> None:
    [source] = re.findall(
        r"^```python\n(# my_team.py\n.*?)^```$", DOCUMENT.read_text(), re.S | re.M
    )
    names: dict[str, Any] = {}
    exec(compile(source, "my_team.py", "exec"), names)
    assert len(source.splitlines()) < 50
    scripts = {
        "planner": Script("Plan: Multiply."),
        "python": Script("Thought: I run it.\nCode: print(6 * 7)"),
        "reviewer": Script("Review: Not yet.\nVerdict: again", "Review: Fine.\nVerdict: done"),
        "writer": Script("Thought: So.\nAnswer: 42"),
    }
    found = run_team(names["code_team"], scripts, tools=(python,))
    assert found.status is AttemptStatus.ANSWERED
    dialect = make_dialect("afm-code", tiny_tokenizer())
    encoded = encode_demonstration(TASK, found.steps, dialect, [])
    assert (encoded.well_formed, encoded.answer, len(encoded.calls)) == (True, "42", 2)
