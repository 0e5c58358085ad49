"""Tokens that end a turn of a model, from its chat template, tokenizer and generation settings.

A chat-tuned model ends its turns with the token that its chat template writes there (`<|im_end|>`,
`<end_of_turn>`, `<|eot_id|>`). Its tokenizer may define another one as the end of a sequence, and
its `generation_config.json` lists several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from jinja2 import TemplateError

from fieldcraft.dialects.chat_template import TURN_PLACEHOLDER, render_chat
from fieldcraft.sampling import TurnEnd
from fieldcraft.types import Tokenizer, UserError


def find_turn_end(
    tokenizer: Tokenizer, configured: Sequence[int] = (), variables: Mapping[str, Any] | None = None
) -> TurnEnd:
    """Return the tokens that end a turn.

    Args:
        tokenizer: tokenizer of the model.
        configured: end tokens of its `generation_config.json`.
        variables: variables of the chat template.

    Raises UserError if no token ends a sequence.
    """
    tokenizer_eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    known = {*configured, *tokenizer_eos}
    template_end = _find_template_end(tokenizer, known, variables or {})
    first = (
        template_end
        if template_end is not None
        else next(iter((*tokenizer_eos, *configured)), None)
    )
    if first is None:
        raise UserError("The tokenizer has no end-of-sequence token; set its eos_token.")
    ids = frozenset({first, *known})
    texts = {i: tokenizer.decode([i]) for i in ids}
    return TurnEnd(first, texts[first], ids, tuple(sorted(texts.values(), key=len, reverse=True)))


def _find_template_end(
    tokenizer: Tokenizer, known: set[int], variables: Mapping[str, Any]
) -> int | None:
    """Return the special token that the chat template writes after the text of a turn.

    If it writes none after the last message, as for GLM-4, a turn ends with the token that opens
    the next message, provided that generation stops there.
    """
    if tokenizer.chat_template is None:
        return None
    messages = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": TURN_PLACEHOLDER},
    ]
    last = _find_special_after(tokenizer, messages, variables)
    if last is not None:
        return last
    following = _find_special_after(
        tokenizer, [*messages, {"role": "user", "content": "?"}], variables
    )
    return following if following in known else None


def _find_special_after(
    tokenizer: Tokenizer, messages: list[dict[str, str]], variables: Mapping[str, Any]
) -> int | None:
    """Return the special token that follows the turn, ignoring white space; None if text
    follows."""
    rendered = ""
    with suppress(TemplateError):  # a template may reject such a conversation
        rendered = render_chat(tokenizer, messages, **variables)
    _, has_turn, after = rendered.rpartition(TURN_PLACEHOLDER)
    ids = tokenizer.encode(after.lstrip(), add_special_tokens=False) if has_turn else []
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    return ids[0] if ids and ids[0] in added and added[ids[0]].special else None
