"""Teams that write harder questions: one adds a hop, the other joins several questions."""

from __future__ import annotations

from fieldcraft.extensions.agents.team import TEXT, Blackboard, Team
from fieldcraft.types import ThoughtRole

DEPTH_PROMPTS = {
    "writer": """\
You make a harder question out of an easy one. You are given a question and its answer, and texts \
about the answer. Choose one fact in these texts that links the answer to another name, number or \
date. Write a question whose answer is that other thing. It must not name the answer of the easy \
question: describe it by what the easy question asks. It must be one sentence with one right \
answer, which is short.""",
}
WIDTH_PROMPTS = {
    "writer": """\
You join several questions into one. You are told the questions, and what the joined one asks \
for. Write one question in plain words that can only be answered by whoever answers all of them. \
It must keep every name that they mention, and must not say any of their answers.""",
}


async def write_deeper_question(board: Blackboard) -> None:
    """Look up the answer with the first tool, then write a question about a fact linked to it."""
    await board.use(next(iter(board.tools)))
    reply = await board.ask("writer", fact=TEXT, new_question=TEXT, new_answer=TEXT)
    board.write(reply["fact"])
    board.write(reply["new_question"], ThoughtRole.SUGGEST)
    board.answer(reply["new_answer"])


async def write_joined_question(board: Blackboard) -> None:
    """Write the joined question; its answer follows from the answers of the given questions."""
    reply = await board.ask("writer", new_question=TEXT)
    board.write(reply["new_question"], ThoughtRole.SUGGEST)
    board.answer("")


DEPTH_WRITERS = Team(DEPTH_PROMPTS, write_deeper_question)
WIDTH_WRITERS = Team(WIDTH_PROMPTS, write_joined_question)
