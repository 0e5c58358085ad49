"""Requests and tokens that AFM's team would have needed to write a chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fieldcraft.evaluation.summary import RequestCost
from fieldcraft.extensions.curation.team import render_step
from fieldcraft.types import Answer, DemoStep, Observation, Thought, ThoughtRole, ToolCall

LEAD = "lead"  # the member of AFM's team that decides what comes next
# Members of AFM's team that write a thought of each role.
ROLE_MEMBERS = {
    ThoughtRole.PLAN: "planner",
    ThoughtRole.REFLECT: "reflection",
    ThoughtRole.SUGGEST: "suggested_answer",
    ThoughtRole.CHECK: "double_check",
    ThoughtRole.SUMMARY: "summary",
}


class TeamRequest(NamedTuple):
    """A request to a member of AFM's team, which reads the first `start` steps of a chain, and
    after whose reply it has `end` steps."""

    start: int
    end: int
    member: str


def reconstruct_requests(steps: Sequence[DemoStep]) -> Iterator[TeamRequest]:
    """Yield the requests that a team would have made to write a chain. The lead, which decides what
    comes next, adds no steps."""
    start = 0  # index of the first step that the next member writes
    for end, step in enumerate(steps, start=1):
        match step:
            case ToolCall(tool):
                yield TeamRequest(start, start, LEAD)
                yield TeamRequest(start, end, tool)
            case Thought(role=ThoughtRole.SUGGEST):
                yield TeamRequest(start, start, LEAD)
                yield TeamRequest(start, end, ROLE_MEMBERS[ThoughtRole.SUGGEST])
            case Thought(role=ThoughtRole.THINK) | Answer():
                continue  # the first step of a member's text; an answer that passed is copied
            case Thought(role=role):
                yield TeamRequest(start, end, ROLE_MEMBERS[role])
            case Observation():
                pass
        start = end


def compute_team_cost(
    question: str,
    steps: Sequence[DemoStep],
    prompts: Mapping[str, str],
    count_tokens: Callable[[str], int],
) -> RequestCost:
    """Return the tokens that the members of AFM's team would have read and written. A request
    consists of the member's prompt, if there is one in `prompts`, the question and the chain so
    far; the names of the requested parts are not counted."""
    sizes = [count_tokens(render_step(step)) for step in steps]
    lengths = {member: count_tokens(prompt) for member, prompt in prompts.items()}
    requests = [*reconstruct_requests(steps)]
    instructions = sum(lengths.get(request.member, 0) for request in requests)
    read = sum(sum(sizes[: r.start]) + count_tokens(question) for r in requests)
    written = sum(sum(sizes[r.start : r.end]) for r in requests)
    return RequestCost(len(requests), read + instructions, written, instructions=instructions)
