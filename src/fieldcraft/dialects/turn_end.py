"""Tokens that end a turn of a model, by its chat template, tokenizer and generation settings.

A model that was tuned on conversations ends its turns with the token that its chat template writes
there (`<|im_end|>`, `<end_of_turn>`, `<|eot_id|>`). Its tokenizer may name another one as the end
of a sequence, and its `generation_config.json` lists several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from jinja2 import TemplateError

from fieldcraft.dialects.templates import TURN, render_chat
from fieldcraft.sampling import TurnEnd
from fieldcraft.types import Tokenizer, UserError


def find_turn_end(
    tokenizer: Tokenizer, configured: Sequence[int] = (), variables: Mapping[str, Any] | None = None
) -> TurnEnd:
    """Find the tokens that end a turn.

    Args:
        tokenizer: of the model.
        configured: the ends of its `generation_config.json`.
        variables: of the chat template.

    Raises UserError where nothing ends a sequence.
    """
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    known = {*configured, *own}
    written = _written(tokenizer, known, variables or {})
    first = written if written is not None else next(iter((*own, *configured)), None)
    if first is None:
        raise UserError("The tokenizer has no end-of-sequence token; set its eos_token.")
    ids = frozenset({first, *known})
    texts = {i: tokenizer.decode([i]) for i in ids}
    return TurnEnd(first, texts[first], ids, tuple(sorted(texts.values(), key=len, reverse=True)))


def _written(tokenizer: Tokenizer, known: set[int], variables: Mapping[str, Any]) -> int | None:
    """Return the special token that the chat template writes after the text of a turn.

    Where it writes none after the last message, as for GLM-4, a turn ends with the token that opens
    the next message, if generation stops there.
    """
    if tokenizer.chat_template is None:
        return None
    talk = [{"role": "user", "content": "question"}, {"role": "assistant", "content": TURN}]
    last = _special_after(tokenizer, talk, variables)
    if last is not None:
        return last
    following = _special_after(tokenizer, [*talk, {"role": "user", "content": "?"}], variables)
    return following if following in known else None


def _special_after(
    tokenizer: Tokenizer, talk: list[dict[str, str]], variables: Mapping[str, Any]
) -> int | None:
    """Return the special token that follows the turn, white space aside; None where text
    follows."""
    rendered = ""
    with suppress(TemplateError):  # a template may refuse such a conversation
        rendered = render_chat(tokenizer, talk, **variables)
    _, shown, after = rendered.rpartition(TURN)
    ids = tokenizer.encode(after.lstrip(), add_special_tokens=False) if shown else []
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    return ids[0] if ids and ids[0] in added and added[ids[0]].special else None
