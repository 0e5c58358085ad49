"""Prompts of conversations whose tools depend on the question, in the dialect of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from fieldcraft.dialects.base import BaseDialect, encode_template, encode_untrusted
from fieldcraft.dialects.chat import ChatRenderer
from fieldcraft.extensions.external_envs.bfcl.questions import Message, Schema
from fieldcraft.types import UserError

SYSTEM_PLACEHOLDER = "\ue001"  # placeholder for a system message in a chat template
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
        system = texts.pop(0)[1] if texts[0][0] == "system" else ""
        (_, question), *rest = texts
        ids = self._encode_first(system, question, tools)
        for role, text in rest:
            is_answer = role == "assistant"
            ids += self.dialect.encode_turn(text) if is_answer else self.encode_reply(text)
        return ids

    def encode_reply(self, message: str) -> list[int]:
        """Return the token ids between the end of a turn without calls and the next turn."""
        return self.chat.encode_reply(message)

    def _encode_first(self, system: str, question: str, tools: Sequence[Schema]) -> list[int]:
        """Return the token ids of a first message, after a system message that may be empty. If the
        template has no system messages, the question begins with it."""
        if not system:
            return self.dialect.encode_prompt(question, tools)
        if self._system_dialect is None:
            return self.dialect.encode_prompt(f"{system}\n\n{question}", tools)
        dialect = self._system_dialect
        before, after = dialect.render_prompt_parts(tools)
        opening, _, between = before.partition(SYSTEM_PLACEHOLDER)
        return [  # a model may have written parts of the system message, as those of its memory
            *encode_template(dialect.tokenizer, opening),
            *encode_untrusted(dialect.tokenizer, system),
            *encode_template(dialect.tokenizer, between),
            *encode_untrusted(dialect.tokenizer, question),
            *encode_template(dialect.tokenizer, after),
        ]

    @cached_property
    def _system_dialect(self) -> BaseDialect | None:
        """Dialect with a placeholder for a system message; None if the template shows none before
        the first message."""
        own = [self.dialect.system_prompt] if self.dialect.system_prompt else []
        try:
            marked = replace(self.dialect, system_prompt="\n\n".join([*own, SYSTEM_PLACEHOLDER]))
        except UserError:
            return None
        before, _ = marked.render_prompt_parts([PROBE_TOOL])
        return marked if SYSTEM_PLACEHOLDER in before else None
