"""Contrastive pairs from questions that were tried both ways, with and without tools.

AutoCoA (arXiv 2503.06580, section 3.2.1) takes questions that one way answers right and the other
wrong, and inserts or removes the action at a point of the trajectory; which point, and in which
proportion, it does not say. Here:

- Acting was needed where every try without tools failed and one with tools was right: chosen is the
  action of the first right try, rejected the first wrong answer that was only thought.
- Thinking was enough where the first try without tools was right: chosen is that try, rejected the
  first action of the first try that acted nevertheless. Where only a later try was right, it may
  have been luck, and there is no pair.
- Both split before the sentence that leads to the first action: what the acting try thought before
  it is the shared prefix; the acting way goes on with that sentence and the action, the thinking
  way with the whole try without tools.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fieldcraft.agents.prompted import Attempt
from fieldcraft.data.steps_io import StepPair
from fieldcraft.types import Action, Step, Task, Thought

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")

NOT_KNOWN = "neither way is right"
LUCKY = "right without tools only at a later try"
NO_ACTION = "thinking is enough, and no try acted"
NO_GUESS = "no wrong answer to reject"


def contrast(task: Task, thinking: Sequence[Attempt], acting: Sequence[Attempt]) -> StepPair | str:
    """Return the pair of a question, or why there is none.

    Args:
        task: the question.
        thinking: the tries without tools, in their order, graded.
        acting: the tries with tools, in their order, graded.
    """
    acted = [attempt for attempt in acting if attempt.acts]
    if thinking and thinking[0].right:
        if not acted:
            return NO_ACTION
        before, step = split(acted[0].steps)
        return StepPair(task, before, thinking[0].steps, step)
    if any(attempt.right for attempt in thinking):
        return LUCKY
    found = [attempt for attempt in acted if attempt.right]
    if not found:
        return NOT_KNOWN
    guesses = [a for a in thinking if a.answer is not None and a.right is False]
    if not guesses:
        return NO_GUESS
    before, step = split(found[0].steps)
    return StepPair(task, before, step, guesses[0].steps)


def split(steps: Sequence[Step]) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Return (what was thought before, the sentence that leads to the first action and that
    action)."""
    first = next(i for i, step in enumerate(steps) if isinstance(step, Action))
    thought = " ".join(s.text for s in steps[:first] if isinstance(s, Thought)).strip()
    ends = [found for found in SENTENCE_END.finditer(thought) if found.end() < len(thought)]
    begun = thought[: ends[-1].start()] if ends else ""
    sentence = thought[ends[-1].end() :] if ends else thought
    before = (Thought(begun),) if begun else ()
    return before, ((Thought(sentence),) if sentence else ()) + (steps[first],)


def with_share(pairs: Sequence[StepPair], share: float) -> list[StepPair]:
    """Return the pairs. Of those that choose thinking only the first ones stay, as many as make up
    `share`."""
    acting = sum(pair.acts for pair in pairs)
    room = int(share / (1 - share) * acting + 1e-9)
    kept = []
    for pair in pairs:
        room -= not pair.acts
        if pair.acts or room >= 0:
            kept.append(pair)
    return kept
