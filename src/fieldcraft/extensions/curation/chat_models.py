"""Models that answer chat messages: an endpoint, or an engine of this process with its template."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Protocol

from fieldcraft.config.sections import DEFAULT_DATE
from fieldcraft.dialects.base import TEXT_PLACEHOLDER, encode_template, encode_untrusted
from fieldcraft.dialects.chat_template import render_chat
from fieldcraft.engine.base import Engine
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.sampling import NO_TRUNCATION, SamplingParams, StopReason, Truncation
from fieldcraft.tools.chat_client import ChatReply, TokenUsage, price_tokens
from fieldcraft.types import Tokenizer, UserError

NO_TEMPLATE_MESSAGE = (
    "the teacher's tokenizer has no chat template: use a model that was tuned to follow"
    " instructions."
)

MessageDict = dict[str, str]  # role and content, as in chat templates and the OpenAI API
NO_USAGE = TokenUsage(0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class MemberUsage:
    """Usage of one member of a team: number of requests, their seconds, tokens and cost."""

    requests: int
    seconds: float
    usage: TokenUsage

    def __add__(self, other: MemberUsage) -> MemberUsage:
        return MemberUsage(
            self.requests + other.requests,
            self.seconds + other.seconds,
            self.usage + other.usage,
        )


def derive_request_seed(key: str) -> int:
    """Return the seed of the request with this key: 31 bits, which every endpoint accepts."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest()) >> 1


class ChatModel(Protocol):
    """Model that answers chat messages, such as `tools.chat_client.ChatClient`."""

    async def chat(
        self,
        messages: list[MessageDict],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        truncation: Truncation = NO_TRUNCATION,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> ChatReply:
        """Request the next message and return it. Raises ChatRequestError if the request fails."""
        ...


@dataclass(frozen=True)
class EngineChatModel:
    """Engine used as a chat model: messages are rendered by the tokenizer's chat template.

    Special tokens named in a message are plain text; only those of the template are recognised.
    `variables` and `prompt_date` are those of the template.
    """

    engine: Engine
    tokenizer: Tokenizer
    prices: tuple[float, float] | None = None  # per million input and output tokens
    variables: Mapping[str, Any] = field(default_factory=dict)
    prompt_date: date = DEFAULT_DATE
    _sessions: itertools.count[int] = field(default_factory=itertools.count)

    async def chat(
        self,
        messages: list[MessageDict],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        truncation: Truncation = NO_TRUNCATION,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> ChatReply:
        """Sample the next message and return it without the token or text that ended it.

        Raises UserError if the tokenizer has no chat template, or one that does not render every
        message exactly once and in order.
        """
        ids = self._encode(messages)
        session = f"chat#{next(self._sessions)}"
        try:
            completion = await self.engine.generate(
                ids,
                SamplingParams(max_tokens, temperature, tuple(stop), seed or 0, truncation),
                session,
            )
        finally:
            self.engine.release(session)
        text = completion.text
        if completion.stop_reason is StopReason.EOS:
            text = text.removesuffix(self.tokenizer.decode(completion.ids[-1:]))
        elif completion.stop_reason is StopReason.STOP:
            text = text[: min(index for index in map(text.find, stop) if index >= 0)]
        finish = "length" if completion.stop_reason is StopReason.LENGTH else "stop"
        usage = price_tokens(len(ids), len(completion.ids), self.prices)
        return ChatReply(text, "", finish, usage)

    def _encode(self, messages: list[MessageDict]) -> list[int]:
        if self.tokenizer.chat_template is None:
            raise UserError(NO_TEMPLATE_MESSAGE)
        placeholders = [
            {"role": message["role"], "content": TEXT_PLACEHOLDER} for message in messages
        ]
        with raise_read_errors("the chat template of the teacher", "correct its file"):
            template = render_chat(
                self.tokenizer,
                placeholders,
                self.prompt_date,
                add_generation_prompt=True,
                **self.variables,
            )
        first, *others = template.split(TEXT_PLACEHOLDER)
        if len(others) != len(messages):
            raise UserError(
                "the chat template of the teacher does not render every message exactly once."
            )
        ids = encode_template(self.tokenizer, first)
        for message, after in zip(messages, others, strict=True):
            ids += encode_untrusted(self.tokenizer, message["content"].strip())
            ids += encode_template(self.tokenizer, after)
        return ids
