"""Contrastive pairs from questions that were attempted both with and without tools.

AutoCoA (arXiv 2503.06580, section 3.2.1) selects questions that one mode answers correctly and the
other wrongly, and inserts or removes the action at one position of the trajectory. It specifies
neither the position nor the proportion. Here:

- Acting was needed if every attempt without tools failed and one with tools was correct: chosen is
  the action of the first correct attempt, rejected the first wrong answer without tools.
- Thinking was enough if the first attempt without tools was correct: chosen is that attempt,
  rejected the first action of the first attempt that acted nevertheless. If only a later attempt
  was correct, it may have been luck, and no pair is made.
- Both split before the sentence that leads to the first action: the preceding thoughts of the
  acting attempt are the shared prefix. The acting branch continues with that sentence and the
  action, the thinking branch with the whole attempt without tools.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fieldcraft.data.steps_io import ContrastivePair
from fieldcraft.extensions.curation.react_agent import AgentAttempt
from fieldcraft.types import DemoStep, Task, Thought, ToolCall

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")

NEITHER_CORRECT = "neither way is right"
LATE_SUCCESS = "right without tools only at a later try"
NO_CALL = "thinking is enough, and no try acted"
NO_WRONG_ANSWER = "no wrong answer to reject"


def make_pair(
    task: Task, thinking: Sequence[AgentAttempt], acting: Sequence[AgentAttempt]
) -> ContrastivePair | str:
    """Return the pair of a question, or the reason why there is none.

    Args:
        task: the question.
        thinking: graded attempts without tools, in order.
        acting: graded attempts with tools, in order.
    """
    with_tools = [attempt for attempt in acting if attempt.uses_tools]
    if thinking and thinking[0].is_correct:
        if not with_tools:
            return NO_CALL
        before, step = split_at_first_call(with_tools[0].steps)
        return ContrastivePair(task, before, thinking[0].steps, step)
    if any(attempt.is_correct for attempt in thinking):
        return LATE_SUCCESS
    found = [attempt for attempt in with_tools if attempt.is_correct]
    if not found:
        return NEITHER_CORRECT
    guesses = [a for a in thinking if a.answer is not None and a.is_correct is False]
    if not guesses:
        return NO_WRONG_ANSWER
    before, step = split_at_first_call(found[0].steps)
    return ContrastivePair(task, before, step, guesses[0].steps)


def split_at_first_call(
    steps: Sequence[DemoStep],
) -> tuple[tuple[DemoStep, ...], tuple[DemoStep, ...]]:
    """Return (the thoughts before the action, the sentence that leads to the first action followed
    by that action)."""
    first = next(i for i, step in enumerate(steps) if isinstance(step, ToolCall))
    thought = " ".join(s.text for s in steps[:first] if isinstance(s, Thought)).strip()
    sentence_ends = [
        found for found in SENTENCE_END.finditer(thought) if found.end() < len(thought)
    ]
    prefix = thought[: sentence_ends[-1].start()] if sentence_ends else ""
    sentence = thought[sentence_ends[-1].end() :] if sentence_ends else thought
    before = (Thought(prefix),) if prefix else ()
    return before, ((Thought(sentence),) if sentence else ()) + (steps[first],)


def cap_thinking_share(pairs: Sequence[ContrastivePair], share: float) -> list[ContrastivePair]:
    """Return the pairs, with only the first of those that choose thinking, so that their fraction
    is at most `share`."""
    acting = sum(pair.chooses_tool for pair in pairs)
    remaining = int(share / (1 - share) * acting + 1e-9)
    selected = []
    for pair in pairs:
        remaining -= not pair.chooses_tool
        if pair.chooses_tool or remaining >= 0:
            selected.append(pair)
    return selected
