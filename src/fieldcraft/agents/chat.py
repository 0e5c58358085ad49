"""Models that answer chat messages: an endpoint, or an engine of this process with its template."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fieldcraft.dialects.base import MARK, encode_frame, encode_plain
from fieldcraft.dialects.templates import render_chat
from fieldcraft.endpoints.openai import Reply, Usage
from fieldcraft.engine.base import Engine
from fieldcraft.sampling import WHOLE, Sampling, Truncation
from fieldcraft.types import StopReason, Tokenizer, UserError

NO_TEMPLATE = (
    "the teacher's tokenizer has no chat template: take a model that was tuned to follow"
    " instructions."
)

Message = dict[str, str]  # role and content, as chat templates and the OpenAI API take them
NOTHING = Usage(0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class SeatUse:
    """Use of one seat of a team: requests, the seconds that they took, and tokens with their
    cost."""

    requests: int
    seconds: float
    usage: Usage

    def __add__(self, other: SeatUse) -> SeatUse:
        return SeatUse(
            self.requests + other.requests,
            self.seconds + other.seconds,
            self.usage + other.usage,
        )


def seed_of(key: str) -> int:
    """Return the seed of the request with this key: 31 bits, which every endpoint takes."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest()) >> 1


class Chat(Protocol):
    """`engine.openai.ChatEndpoint` is one."""

    async def chat(
        self,
        messages: list[Message],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        truncation: Truncation = WHOLE,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> Reply:
        """Ask for the next message and return it. Raises EndpointError if there is none."""
        ...


@dataclass(frozen=True)
class EngineChat:
    """An engine as a chat: messages go through the tokenizer's chat template.

    Special tokens named in a message are text: only the template's own are recognised.
    """

    engine: Engine
    tokenizer: Tokenizer
    _sessions: itertools.count[int] = field(default_factory=itertools.count)

    async def chat(
        self,
        messages: list[Message],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        truncation: Truncation = WHOLE,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> Reply:
        """Ask for the next message and return it, without what ended it. Raises UserError if the
        tokenizer has no chat template, or one that does not show every message once, in their
        order."""
        ids = self._encode(messages)
        session = f"chat#{next(self._sessions)}"
        try:
            done = await self.engine.generate(
                ids,
                Sampling(max_tokens, temperature, tuple(stop), seed or 0, truncation),
                session,
            )
        finally:
            self.engine.release(session)
        text = done.text
        if done.reason is StopReason.EOS:
            text = text.removesuffix(self.tokenizer.decode(done.ids[-1:]))
        elif done.reason is StopReason.STOP:
            text = text[: min(at for at in map(text.find, stop) if at >= 0)]
        finish = "length" if done.reason is StopReason.LENGTH else "stop"
        return Reply(text, "", finish, Usage(len(ids), len(done.ids), 0.0))

    def _encode(self, messages: list[Message]) -> list[int]:
        if self.tokenizer.chat_template is None:
            raise UserError(NO_TEMPLATE)
        shown = [{"role": message["role"], "content": MARK} for message in messages]
        frame = render_chat(self.tokenizer, shown, add_generation_prompt=True)
        first, *others = frame.split(MARK)
        if len(others) != len(messages):
            raise UserError("the chat template of the teacher does not show every message once.")
        ids = encode_frame(self.tokenizer, first)
        for message, after in zip(messages, others, strict=True):
            ids += encode_plain(self.tokenizer, message["content"].strip())
            ids += encode_frame(self.tokenizer, after)
        return ids
