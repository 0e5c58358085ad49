"""Questions inside of prompts, which repeat the instruction of the framework they were made for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fieldcraft.data.formats.values import text_of
from fieldcraft.data.records import Malformed, Record

# AutoCoA's instruction ends so, and this project's for it.
_LAST_LINE = re.compile(r".*\bnow\b[^\n]*\bquestion\b[^\n]*:[ \t]*\n", re.DOTALL | re.IGNORECASE)
# Where an instruction before a question may end, and where one behind it begins.
_COLON = re.compile(r".*:\s+", re.DOTALL)
_BLANK_LINE = re.compile(r".*\n[ \t]*\n\s*", re.DOTALL)
_FEW = 3
_LAST_BLOCK = re.compile(r"\n[ \t]*\n.*", re.DOTALL)


def prompt_of(record: Record) -> str:
    """Return the user's message of a verl prompt, or a prompt that is a text; "" without either.
    Raises Malformed for a conversation of several turns: its last message alone asks something
    else."""
    messages = record.get("prompt")
    if isinstance(messages, str):
        return messages
    if not isinstance(messages, list):
        return ""
    asked = [m for m in messages if isinstance(m, dict) and m.get("role") in ("user", "human")]
    if len(asked) > 1:
        raise Malformed(
            "a prompt of several messages of the user",
            "its prompt is a conversation: write what the user asks in the end as 'question', with"
            " all that it needs.",
        )
    content = asked[0].get("content") if asked else None
    return text_of(content) if content else ""


def asked(prompts: Sequence[str]) -> list[str]:
    """Return the questions of prompts: what follows the last line of an instruction that is known,
    or what is left without the text that all prompts of a file begin with, up to its last colon or
    blank line, and without the paragraphs that all end with. A paragraph that asks something is the
    question, and stays."""
    others = [prompt for prompt in prompts if not _LAST_LINE.match(prompt)]
    before, after = _before(others), _after(others)
    return [
        found.string[found.end() :]
        if (found := _LAST_LINE.match(prompt))
        else prompt.removeprefix(before).removesuffix(after)
        for prompt in prompts
    ]


def asked_by_kind(prompts: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Return the questions of prompts as `asked` does, where the prompts of a kind, such as
    mathematics or code, end with paragraphs of their own."""
    questions = asked(prompts)
    for kind in dict.fromkeys(kinds):
        places = [place for place, other in enumerate(kinds) if other == kind]
        after = _after([questions[place] for place in places])
        for place in places:
            questions[place] = questions[place].removesuffix(after)
    return questions


def _before(prompts: Sequence[str]) -> str:
    """Return the beginning that all prompts share, up to the last colon with white space, or blank
    line."""
    shared = _shared(prompts)
    ends = [found.end() for found in (_COLON.match(shared),) if found]
    if (block := _BLANK_LINE.match(shared)) and "?" not in block.group():
        ends.append(block.end())
    return shared[: max(ends, default=0)]


def _after(prompts: Sequence[str]) -> str:
    """Return the paragraphs that all prompts end with, from the first blank line on. Fewer than
    `_FEW` prompts may end alike by chance."""
    if len(set(prompts)) < _FEW:
        return ""
    shared = _shared([prompt[::-1] for prompt in prompts])[::-1]
    found = _LAST_BLOCK.search(shared)
    return found.group() if found and "?" not in found.group() else ""


def _shared(texts: Sequence[str]) -> str:
    """Return the beginning that all texts share; nothing where there are no two."""
    if len(set(texts)) < 2:
        return ""
    low, high = min(texts), max(texts)  # what these two share, all between them share
    pairs = zip(low, high, strict=False)
    length = next((i for i, (a, b) in enumerate(pairs) if a != b), len(low))
    return low[:length]
