"""Prompts of conversations whose tools depend on the question, in the dialect of the model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from fieldcraft.dialects.base import BaseDialect
from fieldcraft.dialects.chat import ChatRenderer
from fieldcraft.extensions.external_envs.bfcl.questions import Message, Schema
from fieldcraft.types import UserError

PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find a word.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "the word"}},
            "required": ["word"],
        },
    },
}


@dataclass(frozen=True)
class ToolConversation:
    """Encoder of the messages that a model with tools reads. The default instruction of the dialect
    is left out, because the leaderboard has none; one of the recipe is kept."""

    given_dialect: BaseDialect

    @cached_property
    def dialect(self) -> BaseDialect:
        return replace(self.given_dialect, instruction=self.given_dialect.instruction or "")

    @cached_property
    def chat(self) -> ChatRenderer:
        return ChatRenderer(self.dialect)

    def require_tools(self) -> None:
        """Raise UserError for a dialect that cannot offer or call any tool."""
        if self.dialect.callable_tools is not None:
            raise UserError(
                f"the dialect {self.dialect.name} calls only"
                f" {', '.join(self.dialect.callable_tools)}, and these questions have tools of"
                " their own: give --dialect auto, or hermes."
            )
        self.dialect.encode_prompt("question", [PROBE_TOOL])

    def encode_start(self, messages: Sequence[Message], tools: Sequence[Schema]) -> list[int]:
        """Return the token ids of a prompt: optional system messages, then messages of the user,
        with answers between them. Messages of one role in a row become one, because most templates
        need roles that alternate. Raises UserError for a text that the template cannot show."""
        texts = [
            (role, "\n\n".join(message["content"].strip() for message in group))
            for role, group in groupby(messages, key=lambda message: message["role"])
        ]
        dialect = self.dialect
        if texts[0][0] == "system":
            dialect, texts = self._add_system_text(texts[0][1], texts[1:])
        (_, question), *rest = texts
        ids = dialect.encode_prompt(question, tools)
        for role, text in rest:
            ids += dialect.encode_turn(text) if role == "assistant" else self.encode_reply(text)
        return ids

    def encode_reply(self, message: str) -> list[int]:
        """Return the token ids between the end of a turn without calls and the next turn."""
        return self.chat.encode_reply(message)

    def _add_system_text(
        self, system: str, texts: list[tuple[str, str]]
    ) -> tuple[BaseDialect, list[tuple[str, str]]]:
        """Return a dialect with a system prompt, or the dialect and texts that begin with it if the
        template has none."""
        own = [self.dialect.system_prompt] if self.dialect.system_prompt else []
        with suppress(UserError):
            return replace(self.dialect, system_prompt="\n\n".join([*own, system])), texts
        (role, question), *rest = texts
        return self.dialect, [(role, f"{system}\n\n{question}"), *rest]
