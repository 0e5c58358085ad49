"""Programs and results in fences of one text, as in ToRA and ToRL, as separate messages.

    I compute it.
    ```python
    print(6 * 7)
    ```
    ```output
    42
    ```
    So it is \\boxed{42}.

The model did not write the result: as part of its text, it would be trained on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fieldcraft.data.formats.values import extract_text
from fieldcraft.data.records import RecordError

_FENCE = re.compile(r"^```[ \t]*(\w*)[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_OUTPUT_FENCE = re.compile(r"^```[ \t]*output\b", re.MULTILINE | re.IGNORECASE)
_PROGRAM_LANGUAGES = ("python", "py", "python3")


def split_fenced_turns(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Split an assistant message whose text contains results in fences into calls of `python`,
    results, and the final text. Return any other message unchanged. Raises RecordError if programs
    and results do not alternate."""
    content = message.get("content")
    text = extract_text(content) if content and message.get("role") == "assistant" else ""
    return [message] if not _OUTPUT_FENCE.search(text) else list(_split_turns(message, text))


def _split_turns(message: dict[str, Any], text: str) -> Iterator[dict[str, Any]]:
    position, program = 0, None
    for fence in _FENCE.finditer(text):
        before, language = text[position : fence.start()], fence[1].lower()
        if program is None and language in _PROGRAM_LANGUAGES:
            call = {"function": {"name": "python", "arguments": {"code": fence[2].rstrip("\n")}}}
            program = {**message, "content": before.strip(), "tool_calls": [call]}
        elif program is not None and language == "output" and not before.strip():
            yield program
            yield {"role": "tool", "content": fence[2].rstrip("\n")}
            program = None
        else:
            break
        position = fence.end()
    rest = text[position:]
    if program is not None or "```" in rest:
        raise RecordError("programs and results in fences that do not alternate")
    if rest.strip():
        yield {**message, "content": rest.strip()}
