"""Messages of OpenAI's chat completions as token ids, and what the policy wrote as a message.

Contents of messages are plain text; only the chat template writes special tokens. What the policy
itself wrote stays the ids that it sampled, so a conversation that continues begins with exactly the
ids of what was said before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from fieldcraft.dialects.base import (
    BaseDialect,
    encode_frame,
    encode_plain,
    encode_written,
    special_tokens,
    without_think,
)
from fieldcraft.dialects.calls import read_turn
from fieldcraft.gateway.generate import Refused
from fieldcraft.types import Action

PLACE = re.compile(
    "\ue002(\\d+)\ue003"
)  # holds the place of a content while a template is rendered
Json = dict[str, Any]


class Function(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str = ""
    type: Literal["function"] = "function"
    function: Function


class Part(BaseModel):
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message. Its content is text; images and sounds are refused."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None  # of a result: the call that it answers

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""

    @property
    def says(self) -> Says:
        """What tells two messages of the policy apart."""
        calls = self.tool_calls or []
        return Says(self.text, tuple((c.function.name, c.function.arguments) for c in calls))


@dataclass(frozen=True)
class Says:
    """A message of the policy: its text beside its calls, and each call with its arguments."""

    text: str
    calls: tuple[tuple[str, str], ...] = ()


class ChatRequest(BaseModel):
    """A request for a turn. How it is sampled is the run's business; what would change what a turn
    is, is refused."""

    model_config = ConfigDict(extra="ignore")

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Json] = []
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    stop: list[str] | str | None = None
    stream: bool | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    logprobs: Literal[False] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


@dataclass(frozen=True)
class Scribe:
    """Writes conversations in the tokens of a dialect's model, by its chat template."""

    dialect: BaseDialect

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json],
        said: Mapping[Says, str],
        sampled: Callable[[Sequence[int], Says], Sequence[int] | None],
    ) -> list[int]:
        """Token ids up to where the policy writes.

        `said` has the text of each message that the policy wrote in this rollout. `sampled` gives
        the ids that it sampled for one right after the given ids, or None.

        Raises Refused for what the template cannot show.
        """
        self._refuse_forged(messages, tools)
        own = {i for i, m in enumerate(messages) if m.role == "assistant" and m.says in said}
        shown = [self._shown(i, message, i in own) for i, message in enumerate(messages)]
        text = without_think(self.dialect.render(shown, tools))
        first, *rest = PLACE.split(text)
        tokenizer = self.dialect.tokenizer
        ids, places = encode_frame(tokenizer, first), rest[::2]
        if places != [str(i) for i in range(len(messages))]:
            raise Refused("the model's chat template does not show these messages as they are.")
        for i, frame in enumerate(rest[1::2]):
            message = messages[i]
            if i not in own:
                ids += encode_plain(tokenizer, message.text) + encode_frame(tokenizer, frame)
                continue
            turn = sampled(ids, message.says)
            if turn is not None and turn[-1] == tokenizer.eos_token_id:
                frame = self._after_turn(frame)
            ids += encode_written(tokenizer, said[message.says]) if turn is None else turn
            ids += encode_frame(tokenizer, frame)
        return ids

    def read(self, text: str, stops: Sequence[str], tools: Sequence[Json]) -> tuple[str, Says]:
        """The text of a turn without what ends it, and the message that it is. Calls are read where
        the request has tools; one that cannot be read is text."""
        text = self.dialect.without_eos(text)
        ends = [text.index(stop) for stop in stops if stop in text]
        text = text[: min(ends, default=len(text))]
        turn = read_turn(text)
        calls = [call for call in turn.calls if isinstance(call, Action)]
        if not tools or turn.thinking or not calls or len(calls) < len(turn.calls):
            return text, Says(text)
        before = text[: turn.begin] + turn.pieces[0]
        pairs = ((call.tool, json.dumps(call.arguments)) for call in calls)
        return text, Says(before.strip(), tuple(pairs))

    def _shown(self, index: int, message: Message, own: bool) -> Json:
        """A message for the template. The text of one that the policy wrote has its calls in it."""
        record: Json = {"role": message.role, "content": f"\ue002{index}\ue003"}
        if message.role == "developer":
            record["role"] = "system"
        if message.tool_calls and not own:
            record["tool_calls"] = [
                {
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": json.loads(call.function.arguments or "{}"),
                    },
                }
                for call in message.tool_calls
            ]
        return record

    def _after_turn(self, frame: str) -> str:
        """The frame after a turn that already has its end-of-sequence token."""
        tokenizer = self.dialect.tokenizer
        end = re.escape(tokenizer.decode([tokenizer.eos_token_id]))
        return re.sub(rf"\A\s*{end}", "", frame)

    def _refuse_forged(self, messages: Sequence[Message], tools: Sequence[Json]) -> None:
        """What the template itself writes into its text must hold no special token."""
        calls = [call.model_dump() for m in messages for call in m.tool_calls or ()]
        written = json.dumps([*tools, *calls], ensure_ascii=False)
        for token in special_tokens(self.dialect.tokenizer).values():
            if token in written:
                raise Refused(f"a tool or a call contains the special token {token!r}.")
