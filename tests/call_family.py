"""Template of a model family with calls, and literal texts of what it writes."""

from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerFast

from families import Family
from fieldcraft.types import ToolCall


@dataclass(frozen=True)
class CallFamily:
    """Template of a family and literal texts of what it writes.

    Attributes:
        family: template and tokens.
        call_format: name of the format that is recognised.
        calls: text of the calls `CALLS`, or of the first one for a family with one call in a turn.
        end: token that ends a turn with calls.
        results: text before, between and after the two results.
        thought: text of a turn with the thought "T", before its calls.
        variables: variables of the template.
    """

    family: Family
    call_format: str
    calls: str
    end: str
    results: tuple[str, str, str]
    thought: str = "<think>\nT\n</think>\n\n"
    is_single: bool = False
    variables: dict[str, Any] = field(default_factory=dict)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        return self.family.tokenizer()


CALLS = (
    ToolCall("search", {"query": "Oslo"}, "call00001"),
    ToolCall("look", {"page": "Bergen"}, "call00002"),
)
