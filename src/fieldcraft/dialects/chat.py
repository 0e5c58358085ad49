"""Conversations in plain text, by the model's own chat template: no tags, no calls.

    prompt   <|im_start|>user\\nGuess a number.<|im_end|>\\n<|im_start|>assistant\\n
    policy   7<|im_end|>
    reply    \\n<|im_start|>user\\nToo high.<|im_end|>\\n<|im_start|>assistant\\n

A base model without a template has lines: a message, a line break, a turn, the end-of-sequence
token, a line break, a message, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fieldcraft.dialects.base import MARK, BaseDialect, encode_frame, encode_plain
from fieldcraft.dialects.templates import TURN
from fieldcraft.dialects.thoughts import reasoning_and_reply
from fieldcraft.types import UserError


@dataclass(frozen=True)
class Chat:
    """Frame around messages, in the tokens of a dialect's model.

    The dialect's tags do not matter here, but its system prompt and its template's variables do,
    and so does an instruction that the recipe sets.
    """

    dialect: BaseDialect

    def prompt(self, message: str) -> list[int]:
        """Return the token ids up to where the policy starts to write. The message is plain
        text."""
        frame = self.dialect.message_frame(self.dialect.instruction or "")
        return self.dialect.encode_prompt(frame, message)

    def write_reply(self, message: str) -> str:
        """Write what follows a turn of the policy, its end-of-sequence token included, up to its
        next turn."""
        opening, closing = self.frame
        return opening + message + closing

    def encode_reply(self, message: str) -> list[int]:
        """Encode `write_reply` as token ids; only its frame may hold special tokens."""
        opening, closing = self.frame
        tokenizer = self.dialect.tokenizer
        return [
            *encode_frame(tokenizer, opening),
            *encode_plain(tokenizer, message),
            *encode_frame(tokenizer, closing),
        ]

    @cached_property
    def frame(self) -> tuple[str, str]:
        """Text that the template writes between the end of a turn and a message, and behind that.

        Raises UserError for a template that ends a turn otherwise than with the end-of-sequence
        token, or that shows no message after a turn.
        """
        tokenizer = self.dialect.tokenizer
        if tokenizer.chat_template is None:
            return "\n", "\n"
        text = self.dialect.render(
            [
                {"role": "user", "content": "question"},
                {"role": "assistant", "content": TURN},
                {"role": "user", "content": MARK},
            ]
        )
        _, _, rest = text.rpartition(TURN)
        end = self.dialect.end.text
        space, ended, reply = rest.partition(end)
        opening, mark, closing = reply.partition(MARK)
        if space.strip() or not ended or not mark:
            raise UserError(
                f"The tokenizer's chat template does not end a turn with {end!r} and a message"
                " after it; set the tokenizer's eos_token to what ends a turn."
            )
        return opening, self.dialect.without_think(closing)

    def action(self, written: str) -> str:
        """Return the text of a turn: without the end-of-sequence token, and without what a model
        that reasons thought before. A thought that never ends says nothing."""
        return reasoning_and_reply(self.dialect.end.strip(written))[1].strip()
