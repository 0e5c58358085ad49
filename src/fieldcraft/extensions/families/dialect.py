"""Dialect `auto`: calls, thoughts and results as the chat template of the model writes them.

    policy       [THINK]I look.[/THINK][TOOL_CALLS]search[ARGS]{"query": "Oslo"}</s>
    observation  [TOOL_RESULTS]Oslo is a city.[/TOOL_RESULTS]
    policy       [THINK]So it is.[/THINK]\\boxed{Oslo}</s>

The format is found by rendering probe conversations with the template. For a template that writes
the calls of Hermes, or in no known format, this is the dialect `hermes`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fieldcraft.dialects.base import (
    OBSERVATION_PLACEHOLDER,
    BaseDialect,
    encode_policy_text,
    get_special_tokens,
)
from fieldcraft.dialects.calls import TurnContent
from fieldcraft.dialects.chat_template import find_turn_end
from fieldcraft.dialects.hermes import HermesDialect
from fieldcraft.dialects.marked_answers import split_marked_answer
from fieldcraft.dialects.thought_parser import strip_draft_thoughts
from fieldcraft.extensions.families.formats import THINK_TAGS
from fieldcraft.extensions.families.harmony import HarmonyFormat
from fieldcraft.extensions.families.layout import TurnLayout, find_layout
from fieldcraft.extensions.families.probes import strip_prefill
from fieldcraft.sampling import TurnEnd
from fieldcraft.types import (
    ONLY_OBSERVATION,
    Answer,
    ObservationPosition,
    ThoughtRole,
    ToolCall,
    ToolCalls,
    UserError,
)

INSTRUCTION = """\
Answer the question below. Think first. Call a tool whenever it can tell you more than you know \
for certain. When you know the answer, write it, as short as it can be, as \\boxed{YOUR ANSWER}.

Question:"""
TOOLS_DESCRIPTION = """\
You can call tools. Each line between <tools> and </tools> describes one of them as JSON:
<tools>
{tools}
</tools>

A call looks like this:
{call}"""
EXAMPLE_CALL = ToolCall("name_of_the_tool", {"name_of_an_argument": "its value"})


@dataclass(frozen=True)
class AutoDialect(HermesDialect):
    name = "auto"

    @cached_property
    def layout(self) -> TurnLayout | None:
        """Layout of the template's turns; None if they are those of Hermes or of no known
        format."""
        return find_layout(self)

    @property
    def template_format(self) -> str:
        return self.layout.call_format.name if self.layout else super().template_format

    def require_opening(self) -> None:
        if self.layout is None:
            super().require_opening()

    # -- tokens --------------------------------------------------------------------------------

    @property
    def tags(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.layout.tags if self.layout else HermesDialect.tags

    @property
    def thought_tags(self) -> tuple[str, str]:
        return self.layout.thought_tags if self.layout else THINK_TAGS

    @property
    def tagged_roles(self) -> tuple[ThoughtRole, ...]:
        return (ThoughtRole.THINK,) if self.layout else super().tagged_roles

    @cached_property
    def _answer_end(self) -> TurnEnd:
        end = find_turn_end(self.tokenizer, self.eos_ids, self.chat_template_kwargs)
        if self.layout is None or end.text not in self.layout.answer_frame[1]:
            return end
        # The template writes a tag after the answer, which ends the turn only with the next token.
        texts = [text for text in end.texts if text != end.text]
        texts = sorted({*texts, self.layout.call_end}, key=len, reverse=True)
        ids = end.ids - {end.token_id} | {self._call_end_id}
        return TurnEnd(self._call_end_id, self.layout.call_end, ids, tuple(texts))

    @cached_property
    def turn_end(self) -> TurnEnd:
        """Tokens that end a turn, those after calls included."""
        end = self._answer_end
        if self.layout is None or self.layout.call_end in end.texts:
            return end
        texts = sorted((*end.texts, self.layout.call_end), key=len, reverse=True)
        return TurnEnd(end.token_id, end.text, end.ids | {self._call_end_id}, tuple(texts))

    @property
    def stop_strings(self) -> tuple[str, ...]:  # type: ignore[override]
        """The token after calls, if generation does not stop there by itself."""
        if self.layout is None or self.layout.call_end in self._answer_end.texts:
            return ()
        return (self.layout.call_end,)

    @cached_property
    def _call_end_id(self) -> int:
        assert self.layout is not None
        [token] = self.tokenizer.encode(self.layout.call_end, add_special_tokens=False)
        return token

    @cached_property
    def _tag_ids(self) -> dict[str, int]:
        """Special tokens that the tags consist of, and their ids."""
        special = get_special_tokens(self.tokenizer).items()
        return {text: i for i, text in special if any(text in tag for tag in self.tags)}

    def number_calls(self, calls: Sequence[ToolCall], before: int) -> list[ToolCall]:
        if self.layout is None or not self.layout.call_format.numbers_calls:
            return super().number_calls(calls, before)
        make_id = self.layout.call_format.make_call_id
        return [
            replace(call, call_id=make_id(replace(call, call_id=""), before + i))
            for i, call in enumerate(calls)
        ]

    def encode_policy_text(self, text: str) -> list[int]:
        if self.layout is None or not self._tag_ids:
            return super().encode_policy_text(text)
        tags = sorted(self._tag_ids, key=len, reverse=True)
        pieces = re.split(f"({'|'.join(map(re.escape, tags))})", text)
        ids: list[int] = []
        for piece in filter(None, pieces):
            tag = self._tag_ids.get(piece)
            ids += encode_policy_text(self.tokenizer, piece) if tag is None else [tag]
        return ids

    def encode_turn(self, text: str) -> list[int]:
        if self.layout is None:
            return super().encode_turn(text)
        has_calls = isinstance(self.parse([text]), tuple)
        end = self._call_end_id if has_calls else self.turn_end.token_id
        return [*self.encode_policy_text(text), end]

    def strip_think_prefill(self, text: str) -> str:
        return strip_prefill(text)

    # -- prompt --------------------------------------------------------------------------------

    def render_prompt_parts(self, tools: Sequence[dict[str, Any]]) -> tuple[str, str]:
        if self.layout is None:
            return super().render_prompt_parts(tools)
        described = json.dumps(list(tools), ensure_ascii=False)
        for token in get_special_tokens(self.tokenizer).values():
            if token in described:
                raise UserError(f"The description of a tool contains the special token {token!r}.")
        if not tools or self._shows_tools(tools):
            own = INSTRUCTION if self.instruction is None else self.instruction
            return self.render_message_parts(own, tools)
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        call = self.layout.call_format.render_calls([EXAMPLE_CALL])
        return self._render_parts_with_tools(TOOLS_DESCRIPTION.format(tools=lines, call=call))

    def _shows_tools(self, tools: Sequence[dict[str, Any]]) -> bool:
        text = self.render_conversation([{"role": "user", "content": "question"}], tools)
        return all(tool["function"]["name"] in text for tool in tools)

    # -- results -------------------------------------------------------------------------------

    def observation_delimiters(
        self, position: ObservationPosition = ONLY_OBSERVATION
    ) -> tuple[str, str]:
        if self.layout is None:
            return super().observation_delimiters(position)
        frames = self.layout.results
        opening = "" if position.index else frames.opening
        is_last = position.index == position.count - 1
        special = frozenset(get_special_tokens(self.tokenizer).values())
        closing = frames.closing if is_last else frames.between
        return frames.fill(opening, position, special), frames.fill(closing, position, special)

    def escape_result(self, text: str) -> str:
        if self.layout is None or not self.layout.escapes_results:
            return text
        return json.dumps(text, ensure_ascii=False)[1:-1]

    # -- turns of the policy -------------------------------------------------------------------

    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None:
        if self.layout is None:
            return super().parse(turns)
        turn = self._parse_turn(self.turn_end.strip("".join(turns[-1:])))
        if turn.is_thinking:
            return None
        if turn.calls:
            return tuple(turn.calls)
        reply = strip_draft_thoughts("".join(turn.texts))
        marked = split_marked_answer(reply)
        text = marked[1] if marked else reply.strip()
        return Answer(text) if text else None

    def _parse_turn(self, text: str) -> TurnContent:
        """Parse a turn without the token that ended it, and without the tags around an answer."""
        assert self.layout is not None
        turn = self.layout.call_format.parse_turn(text, self.layout.thought_tags)
        opening, closing = self.layout.answer_frame
        if opening and not turn.calls:
            turn.texts = [t.strip().removeprefix(opening).removesuffix(closing) for t in turn.texts]
        return turn

    def render_thought(self, text: str) -> str:
        if self.layout is None:
            return super().render_thought(text)
        opening, closing = self.layout.thought
        return f"{opening}{text}{closing}" if text else self.layout.lead

    def render_call(self, call: ToolCall) -> str:
        return self.render_calls([call]) if self.layout else super().render_call(call)

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """Render calls. Raises UserError for calls that the format cannot hold."""
        if self.layout is None:
            return super().render_calls(calls)
        if self.layout.is_single and len(calls) > 1:
            return BaseDialect.render_calls(self, calls)  # which raises
        call_format = self.layout.call_format
        text = call_format.render_calls(calls)
        read = self.parse([text])
        parsed = [c for c in read if isinstance(c, ToolCall)] if isinstance(read, tuple) else []
        same = [(c.tool, {*c.arguments}) for c in parsed] == [
            (c.tool, {*c.arguments}) for c in calls
        ]
        if not same or call_format.render_calls(parsed) != text:
            raise UserError(
                f"The format {call_format.name} of the model's chat template cannot hold {calls}:"
                " leave out its tags, or use the dialect hermes."
            )
        return text + self.layout.call_tail

    def render_answer(self, text: str) -> str:
        opening, closing = self.layout.answer_frame if self.layout else ("", "")
        return f"{opening}{super().render_answer(text)}{closing}"

    def render_answer_opening(self, turn: str) -> str:
        if self.layout is None:
            return super().render_answer_opening(turn)
        call_format = self.layout.call_format
        if isinstance(call_format, HarmonyFormat):
            return call_format.render_answer_opening(turn, self.answer_opening)
        is_open = self._parse_turn(turn).is_thinking
        closing = self.layout.thought[1] if is_open else "\n" * (not turn.endswith("\n"))
        return (closing if turn else self.layout.lead) + self.answer_opening

    @property
    def summary_prompt(self) -> str | None:
        return (self.layout.answer_frame[0] if self.layout else "") + (super().summary_prompt or "")

    # -- grammar -------------------------------------------------------------------------------

    def is_well_formed(self, turns: Sequence[str]) -> bool:
        if self.layout is None:
            return super().is_well_formed(turns)
        if not turns or any(OBSERVATION_PLACEHOLDER in turn for turn in turns):
            return False
        return self.matches_grammar(OBSERVATION_PLACEHOLDER.join(map(self.turn_end.strip, turns)))

    def matches_grammar(self, joined_turns: str) -> bool:
        if self.layout is None:
            return super().matches_grammar(joined_turns)
        *calls, final = joined_turns.split(OBSERVATION_PLACEHOLDER)
        are_calls = (self.parse([turn]) for turn in calls)
        return (
            all(map(self._is_canonical, (*calls, final)))
            and all(
                isinstance(read, tuple) and all(isinstance(c, ToolCall) for c in read)
                for read in are_calls
            )
            and isinstance(self.parse([final]), Answer)
        )

    def _is_canonical(self, turn: str) -> bool:
        """Return whether a turn consists of one thought at most, text, and calls at its end."""
        assert self.layout is not None
        call_format = self.layout.call_format
        if isinstance(call_format, HarmonyFormat):
            return call_format.is_canonical(turn)
        content = self._parse_turn(turn)
        thought, (opening, closing) = turn[: content.start], self.layout.thought_tags
        inner = thought.strip().removeprefix(opening).removesuffix(closing)
        has_tags = thought.strip() == f"{opening}{inner}{closing}"
        special = (*THINK_TAGS, opening, closing, *get_special_tokens(self.tokenizer).values())
        special += tuple(filter(None, self.layout.answer_frame))
        outside = (*special, *call_format.markers)
        return (
            (not thought or thought.strip() == self.layout.lead.strip() or has_tags)
            and not any(tag in inner.strip() for tag in special if tag != self.layout.lead.strip())
            and not any(tag in text for text in content.texts for tag in outside)
            and all(not text.strip() for text in content.texts[1:])
        )
