"""The models of a team behind an endpoint, which identify the members by their prompts."""

import re
from collections import Counter

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from chat_server import completion

MEMBERS = {  # start of the prompt
    "You are the planner": "planner",
    "You lead a team": "lead",
    "You are the search agent": "search",
    "You watch the work": "reflection",
    "You write the answer": "suggested_answer",
    "You check the suggested": "double_check",
}
GRADED = "Thought: I grade it.\nInformation conflict: Good\nTool effectiveness: {}\n"
GRADED += "Trajectory monitoring: Fair"


class FakeTeam:
    """Endpoint that plays by the kind of the question. Easy ones succeed. For hard ones the first
    search finds nothing; for slow ones the first suggestion is wrong. For nonsense the double check
    writes prose instead of a score. For broken ones the lead's model is down."""

    def __init__(self) -> None:
        self.asked = Counter[tuple[str, str, str]]()  # (question, member, model)
        self.repaired = False

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        content = body["messages"][0]["content"]
        if content == "Say ok.":
            return completion("ok")
        [member] = [member for begin, member in MEMBERS.items() if content.startswith(begin)]
        _, _, chain = content.rpartition("Question: ")
        kind, number = re.match(r"Where was the (\w+) Person(\d+) born\?", chain).groups()
        self.asked[f"{kind} {number}", member, body["model"]] += 1
        if kind == "broken" and member == "lead" and not self.repaired:
            return PlainTextResponse("on fire", status_code=500)
        return completion(self.reply(member, kind, f"Person{number}", f"Town{number}", chain))

    def reply(self, member: str, kind: str, person: str, town: str, chain: str) -> str:
        found = f"{person} was born in {town}" in chain
        match member:
            case "planner":
                return f"Thought: I look it up.\nPlan: Search for {person}."
            case "lead":
                return f"Thought: The plan goes on.\nNext: {'answer' if found else 'search'}"
            case "search":
                wrong = kind == "hard" and "Poor" not in chain
                return f"Thought: I search.\nQuery: {'xyzzy' if wrong else person}"
            case "reflection":
                return GRADED.format("Good" if found else "Poor")
            case "suggested_answer":
                wrong = kind == "slow" and "Double check" not in chain
                return f"Thought: It is there.\nSuggested answer: {'Rome' if wrong else town}"
            case _:
                score = 2 if chain.rpartition("Suggested answer: ")[2].startswith("Rome") else 4
                verdict = "It looks fine to me." if kind == "nonsense" else f"Score: {score}"
                return f"Thought: I compare it.\n{verdict}"

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self.complete, methods=["POST"])])
