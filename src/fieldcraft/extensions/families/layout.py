"""Layout of the turns of a chat template with calls, found with probe conversations.

A format is recognised if it renders the probe calls exactly as the template does. All text around
them, such as tags of thoughts and frames of results, is taken from the template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fieldcraft.dialects.base import TEXT_PLACEHOLDER, BaseDialect, get_special_tokens
from fieldcraft.dialects.chat_template import TURN_PLACEHOLDER
from fieldcraft.extensions.families.formats import (
    THINK_TAGS,
    CallFormat,
    make_default_call_id,
)
from fieldcraft.extensions.families.harmony import HEADERS, HarmonyFormat
from fieldcraft.extensions.families.invoke_formats import (
    DsmlFormat,
    DsmlToolCallsFormat,
    MiniMaxFormat,
)
from fieldcraft.extensions.families.json_formats import (
    ARGS,
    PYTHON_TAG,
    DeepSeekFormat,
    LlamaFormat,
    MistralFormat,
)
from fieldcraft.extensions.families.markup_formats import (
    GemmaFormat,
    GlmFormat,
    QwenCoderFormat,
)
from fieldcraft.extensions.families.numbered_formats import CohereFormat, KimiFormat
from fieldcraft.extensions.families.probes import (
    FORMS,
    PROBE_NAMES,
    THOUGHT_PLACEHOLDER,
    TemplateProbe,
    make_probe_calls,
    strip_prefill,
)
from fieldcraft.extensions.families.python_formats import (
    LfmFormat,
    PythonFormat,
    PythonicFormat,
    ToolCodeFormat,
)
from fieldcraft.types import MalformedCall, ObservationPosition, ToolCall

VARIANTS: tuple[CallFormat, ...] = (
    QwenCoderFormat(),
    GlmFormat(gap="\n"),
    GlmFormat(gap=""),
    *(HarmonyFormat(header=header) for header in HEADERS),
    DeepSeekFormat(is_fenced=True),
    DeepSeekFormat(is_fenced=False),
    *(MistralFormat(is_list=True, space=s, has_id=i) for s in (" ", "") for i in (True, False)),
    *(MistralFormat(has_id=i, arguments_mark=a) for i in (True, False) for a in (ARGS, "")),
    GemmaFormat(),
    GemmaFormat(tags=("<start_function_call>", "<end_function_call>"), quote="<escape>"),
    KimiFormat(),
    CohereFormat(),
    MiniMaxFormat(),
    DsmlFormat(),
    DsmlToolCallsFormat(),
    LfmFormat(),
    *(LlamaFormat(prefix=prefix) for prefix in (PYTHON_TAG, "")),
    ToolCodeFormat(),
    PythonicFormat(),
)
SEPARATORS = ("", "\n", ", ", "; ", " ", "\n\n")
THOUGHT_TAGS = (
    THINK_TAGS,
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
_LEAD_REGEX = re.compile(
    r"\s*(?:(?:<think>\s*)?</think>\s*|<\|START_THINKING\|><\|END_THINKING\|>)?"
)
# Slots for the label of the result before and after a text of the template.
_NAME_SLOTS, _ID_SLOTS = ("\ue010", "\ue011"), ("\ue012", "\ue013")
_SLOT_REGEX = re.compile("[\ue010-\ue013]")
UNKNOWN_CALL = ToolCall("unknown", {})  # instead of one whose label could forge a tag
_LABEL_REGEX = re.compile(r"[\w.:/-]{1,64}")


@dataclass(frozen=True)
class ResultFrames:
    """Text before, between and after the results of a turn, with slots for the tools and ids."""

    call_format: CallFormat
    opening: str
    between: str
    closing: str

    def fill(self, frame: str, position: ObservationPosition, special: frozenset[str]) -> str:
        """Return a frame with the labels of the call of a position and of the next one. A label of
        the policy that is no plain word is left out: it could forge a tag."""

        def fill_slot(found: re.Match[str]) -> str:
            is_name = found[0] in _NAME_SLOTS
            slots = _NAME_SLOTS if is_name else _ID_SLOTS
            index = position.index + slots.index(found[0])
            call = position.calls[index] if index < len(position.calls) else UNKNOWN_CALL
            for candidate in (call, UNKNOWN_CALL):
                label = candidate.tool if is_name else self._make_id(candidate, index)
                if _LABEL_REGEX.fullmatch(label) and not any(t in label for t in special):
                    break
            return label

        return _SLOT_REGEX.sub(fill_slot, frame)

    def _make_id(self, call: ToolCall | MalformedCall, index: int) -> str:
        known = call if isinstance(call, ToolCall) else ToolCall(call.tool or UNKNOWN_CALL.tool, {})
        return self.call_format.make_call_id(known, index)


@dataclass(frozen=True)
class TurnLayout:
    """Layout of turns.

    Attributes:
        call_format: format of the calls.
        is_single: whether the template allows only one call in a turn.
        lead: start of a turn without a thought.
        thought: text before and after a thought.
        thought_tags: the tags in it.
        answer_frame: text before an answer, after the thought, and text after it, before the token
            that ends the turn.
        call_tail: white space after the last call.
        call_end: token that ends a turn with calls.
        results: text around results.
        escapes_results: whether results are strings of JSON.
    """

    call_format: CallFormat
    is_single: bool
    lead: str
    thought: tuple[str, str]
    thought_tags: tuple[str, str]
    answer_frame: tuple[str, str]
    call_tail: str
    call_end: str
    results: ResultFrames
    escapes_results: bool

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of thoughts and calls."""
        return tuple(dict.fromkeys((*self.thought_tags, *self.call_format.markers)))


def find_layout(dialect: BaseDialect) -> TurnLayout | None:
    """Return the layout of the chat template of a dialect's model; None if it writes calls in no
    known format."""
    if dialect.tokenizer.chat_template is None:
        return None
    for count in (len(PROBE_NAMES), 1):
        for form in FORMS:
            layout = _match_layout(TemplateProbe(dialect, form), count)
            if layout is not None:
                return layout
    return None


def _match_layout(probe: TemplateProbe, count: int) -> TurnLayout | None:
    """Return the layout that the rendered turn with this number of calls has."""
    calls = make_probe_calls(count)
    text = probe.render_calls(calls)
    if not text:
        return None
    for call_format in _iter_variants():
        rendered = call_format.render_calls(calls)
        lead, found, rest = text.partition(rendered)
        ended = _split_end(probe.dialect, rest)
        if found and _LEAD_REGEX.fullmatch(lead) and ended is not None:
            frames = _split_results(ended[2], calls, call_format)
            if frames is not None:
                return _complete_layout(probe, count, call_format, lead, ended[:2], frames)
    return None


def _iter_variants() -> Iterator[CallFormat]:
    for variant in VARIANTS:
        for separator in SEPARATORS:
            yield replace(variant, separator=separator)


def _split_end(dialect: BaseDialect, rest: str) -> tuple[str, str, str] | None:
    """Split the text after calls at the token that ends the turn, with the white space before it;
    None if another text follows."""
    tokenizer, stripped = dialect.tokenizer, rest.lstrip()
    ids = tokenizer.encode(stripped, add_special_tokens=False) if stripped else []
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    if not ids or ids[0] not in added:
        return None
    end = added[ids[0]].content
    space = rest[: len(rest) - len(stripped)]
    return (space, end, stripped.removeprefix(end)) if stripped.startswith(end) else None


def _split_results(
    text: str, calls: Sequence[ToolCall], call_format: CallFormat
) -> ResultFrames | None:
    """Split the text after a turn at the results, with slots in place of labels."""
    parts = text.split(TEXT_PLACEHOLDER)
    if len(parts) != 3:
        return None
    for i, call in enumerate(calls):
        label = (call.tool, call_format.make_call_id(call, i), call_format.id_context)
        # The second result of a single call repeats the first label.
        slots = (0, i) if len(calls) > 1 else (0, 0)
        parts[0] = _put_slots(parts[0], *label, 0)
        parts[1] = _put_slots(parts[1], *label, slots[1])
        parts[2] = _put_slots(parts[2], *label, 0)
    if any(make_default_call_id(i) in part for i in range(len(calls)) for part in parts):
        return None  # the id of a message, which the call has not
    opening, between, closing = parts
    return ResultFrames(call_format, opening, between, strip_prefill(closing))


def _put_slots(text: str, name: str, call_id: str, id_context: str, slot: int) -> str:
    text = text.replace(id_context.format(call_id), id_context.format(_ID_SLOTS[slot]))
    return text.replace(name, _NAME_SLOTS[slot])


def _complete_layout(
    probe: TemplateProbe,
    count: int,
    call_format: CallFormat,
    lead: str,
    call_end: tuple[str, str],
    results: ResultFrames,
) -> TurnLayout:
    """Return the layout with the rest of what the template writes."""
    special = get_special_tokens(probe.dialect.tokenizer).values()
    protected = tuple(dict.fromkeys((*call_format.markers, *special, *THINK_TAGS)))
    complete = replace(_with_words(probe, call_format), protected=protected)
    thought, tags = _find_thought(probe, call_format, count)
    quoted = probe.render_calls(make_probe_calls(count), f'{TEXT_PLACEHOLDER}"')
    return TurnLayout(
        call_format=complete,
        is_single=count == 1,
        lead=lead,
        thought=thought,
        thought_tags=tags,
        answer_frame=_find_answer(probe, call_end[1]),
        call_tail=call_end[0],
        call_end=call_end[1],
        results=results,
        escapes_results=f'{TEXT_PLACEHOLDER}\\"' in quoted,
    )


def _find_answer(probe: TemplateProbe, call_end: str) -> tuple[str, str]:
    """Return the added tokens before and after an answer, except the token that ends the turn;
    "" if there are none. Those of Cohere's newer models are not special."""
    before, _, after = probe.render_answer().partition(TURN_PLACEHOLDER)
    lead = _LEAD_REGEX.match(before)
    assert lead is not None
    opening = before[lead.end() :]
    added = probe.dialect.tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
    if not any(token.content in opening for token in added):
        return "", ""
    closing, has_end, _ = after.partition(call_end)
    return opening, closing if has_end else ""


def _with_words(probe: TemplateProbe, call_format: CallFormat) -> CallFormat:
    """Return the format with the truth values of JSON, unless the template writes those of
    Python, and with lists of JSON, likewise."""
    if isinstance(call_format, LfmFormat):
        text = probe.render_calls(make_probe_calls(1, exact=[True]))
        return replace(call_format, is_escaped="[true]" in text)
    if not isinstance(call_format, PythonFormat | QwenCoderFormat | GlmFormat):
        return call_format
    text = probe.render_calls(make_probe_calls(1, exact=True))
    return replace(call_format, json_words="True" not in text)


def _find_thought(
    probe: TemplateProbe, call_format: CallFormat, count: int
) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the text around a thought, and its tags. Between the tags of DeepSeek and Qwen if the
    template writes no thoughts."""
    calls = make_probe_calls(count)
    rendered = call_format.render_calls(calls)
    for text in probe.iter_thoughts(calls):
        before, has_calls, _ = text.partition(rendered)
        opening, has_thought, closing = before.partition(THOUGHT_PLACEHOLDER)
        for tags in THOUGHT_TAGS if has_calls and has_thought else ():
            if tags[0] in opening and tags[1] in closing:
                return (opening, closing), tags
    return ("<think>\n", "\n</think>\n\n"), THINK_TAGS
