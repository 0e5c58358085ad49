"""Team of AFM: it plans, calls tools, reflects, suggests an answer and checks it twice.

AFM (arXiv 2508.13167, Chain-of-Agents) records the work of a team as one chain and trains one model
on it. The paper's team and prompts are not public; this team has the agents that appear in the
published chains. After every call the reflection grades three criteria. A poor grade, or a double
check with a score below 3, leads to another plan. The chains match the grammars of
`afm.py`.
"""

from __future__ import annotations

from fieldcraft.dialects.afm_grades import (
    CRITERIA,
    MIN_PASSING_SCORE,
    POOR_GRADE,
    make_double_check,
    make_reflection,
)
from fieldcraft.extensions.curation.react_agent import AttemptStatus
from fieldcraft.extensions.curation.team import TEXT, Blackboard, Team, TeamGaveUpError
from fieldcraft.types import ThoughtRole

MAX_PLANS = 4
READY = "answer"  # written by the lead in place of the name of a tool
GRADES = ("Good", "Fair", POOR_GRADE)

PROMPTS = {
    "planner": """\
You are the planner of a team that answers a question with tools. Think about what is known and \
what is missing. Then write a plan: a few short steps, each of which one call of a tool can do. If \
an earlier plan failed, take another way.""",
    "lead": """\
You lead a team that answers a question. Read what was done so far and compare it with the latest \
plan. Think about what is still missing, and say which tool is called next. If nothing is missing, \
write answer.""",
    "reflection": """\
You watch the work of a team. Look at the latest call and what it returned, and think about three \
criteria. Information conflict: is what was found free of contradictions, and was it read \
correctly? Tool effectiveness: did the call return what was needed? Trajectory monitoring: does \
the team come closer to the answer without repeating itself? Grade each of them. Write Poor if the \
plan has to change.""",
    "suggested_answer": """\
You write the answer of a team. Think about what the chain proves, then suggest the answer to the \
question: the answer alone, as short as it can be.""",
    "double_check": """\
You check the suggested answer of a team and trust nobody. Go through the question part by part, \
and compare each with what the tools returned. Then give a score: 4 if the answer is right and \
proved, 3 if it has slight defects, 2 if it is mostly wrong, 1 if it is wrong or only guessed.""",
}
SEARCH_PROMPT = """\
You are the search agent of a team. Think about what the plan needs next, then write the query: a \
few words that name what is looked for. Do not repeat a query that was tried."""
TOOL_PROMPTS = {
    "search": SEARCH_PROMPT,
    "web_search": SEARCH_PROMPT,
    "crawl_page": """\
You are the agent of a team that reads pages. Think about which page that was found tells most, \
then write its address.""",
    "python": """\
You are the code agent of a team. Think about what can be computed or tested, then write one small \
program that prints what it finds and touches no files.""",
}


async def run_afm_team(board: Blackboard) -> None:
    """Plan, work, suggest and check, until an answer passes."""
    for _ in range(MAX_PLANS):
        await _write(board, "planner", "plan", ThoughtRole.PLAN)
        if await _work(board) and await _suggest(board):
            return
    raise TeamGaveUpError(AttemptStatus.TOO_MANY_PLANS)


async def _work(board: Blackboard) -> bool:
    """Call tools until the lead decides to answer or no calls are left.

    Returns False if a reflection requests another plan.
    """
    while board.calls_left:
        reply = await board.ask("lead", thought=TEXT, next=[*board.tools, READY])
        board.write(reply["thought"])
        if reply["next"] == READY:
            break
        await board.use(reply["next"])
        if not await _reflect(board):
            return False
    return True


async def _reflect(board: Blackboard) -> bool:
    """Grade the latest call. Return False if a grade is poor."""
    reply = await board.ask("reflection", thought=TEXT, **dict.fromkeys(CRITERIA, GRADES))
    board.write(reply["thought"])
    grades = [reply[name] for name in CRITERIA]
    board.steps.append(make_reflection(grades))
    return POOR_GRADE not in grades


async def _suggest(board: Blackboard) -> bool:
    """Suggest an answer, check it, and give it if it passes. Return whether it passed."""
    answer = await _write(board, "suggested_answer", "suggested_answer", ThoughtRole.SUGGEST)
    reply = await board.ask("double_check", thought=TEXT, score=["1", "2", "3", "4"])
    board.write(reply["thought"])
    board.steps.append(make_double_check(int(reply["score"])))
    if int(reply["score"]) < MIN_PASSING_SCORE:
        return False
    board.write("The answer passed the check.")
    board.answer(answer)
    return True


async def _write(board: Blackboard, member: str, section: str, role: ThoughtRole) -> str:
    """Let a member think and write its section of the chain."""
    reply = await board.ask(member, thought=TEXT, **{section: TEXT})
    board.write(reply["thought"])
    board.write(reply[section], role)
    return reply[section]


AFM_TEAM = Team(PROMPTS, run_afm_team, TOOL_PROMPTS)
