"""Conversations in plain text, by the model's own chat template, without tags and calls.

    prompt   <|im_start|>user\\nGuess a number.<|im_end|>\\n<|im_start|>assistant\\n
    policy   7<|im_end|>
    reply    \\n<|im_start|>user\\nToo high.<|im_end|>\\n<|im_start|>assistant\\n

A base model without a template uses lines: a message, a line break, a turn, the end-of-sequence
token, a line break, a message, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fieldcraft.dialects.base import (
    TEXT_PLACEHOLDER,
    BaseDialect,
    encode_template,
    encode_untrusted,
)
from fieldcraft.dialects.chat_template import TURN_PLACEHOLDER
from fieldcraft.dialects.thought_parser import split_reasoning
from fieldcraft.types import UserError


@dataclass(frozen=True)
class ChatRenderer:
    """Renderer of messages in the chat format of a dialect's model.

    The dialect's tags are not used, but its system prompt, its template variables and the recipe's
    instruction are.
    """

    dialect: BaseDialect

    def encode_prompt(self, message: str) -> list[int]:
        """Return the token ids up to the start of the policy's turn. The message is plain text."""
        frame = self.dialect.render_message_parts(self.dialect.instruction or "")
        return self.dialect.encode_prompt_parts(frame, message)

    def render_reply(self, message: str) -> str:
        """Render the text between two policy turns, from the end-of-sequence token on."""
        opening, closing = self.reply_delimiters
        return opening + message + closing

    def encode_reply(self, message: str) -> list[int]:
        """Encode `render_reply` as token ids; special tokens are recognised only outside the
        message."""
        opening, closing = self.reply_delimiters
        tokenizer = self.dialect.tokenizer
        return [
            *encode_template(tokenizer, opening),
            *encode_untrusted(tokenizer, message),
            *encode_template(tokenizer, closing),
        ]

    @cached_property
    def reply_delimiters(self) -> tuple[str, str]:
        """Text of the template between the end of a turn and a message, and after the message.

        Raises UserError for a template that does not end a turn with the end-of-sequence token, or
        that shows no message after a turn.
        """
        tokenizer = self.dialect.tokenizer
        if tokenizer.chat_template is None:
            return "\n", "\n"
        text = self.dialect.render_conversation(
            [
                {"role": "user", "content": "question"},
                {"role": "assistant", "content": TURN_PLACEHOLDER},
                {"role": "user", "content": TEXT_PLACEHOLDER},
            ]
        )
        _, _, rest = text.rpartition(TURN_PLACEHOLDER)
        end = self.dialect.turn_end.text
        space, ended, reply = rest.partition(end)
        opening, mark, closing = reply.partition(TEXT_PLACEHOLDER)
        if space.strip() or not ended or not mark:
            raise UserError(
                f"The tokenizer's chat template does not end a turn with {end!r} and a message"
                " after it; set the tokenizer's eos_token to what ends a turn."
            )
        return opening, self.dialect.strip_think_prefill(closing)

    def strip_turn(self, turn: str) -> str:
        """Return the text of a turn without the end-of-sequence token and without the preceding
        reasoning. The text is empty if the reasoning never ends."""
        return split_reasoning(self.dialect.turn_end.strip(turn))[1].strip()
