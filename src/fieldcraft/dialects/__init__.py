"""Dialects: tag formats of models.

Only dialects handle tags; those of papers are in `extensions/methods/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from fieldcraft.config.components import ComponentKind
from fieldcraft.config.names import resolve
from fieldcraft.config.sections import DEFAULT_DATE
from fieldcraft.dialects.base import BaseDialect, encode_untrusted
from fieldcraft.types import Dialect, Tokenizer

__all__ = [
    "BaseDialect",
    "check_part_encoding",
    "check_round_trip",
    "make_dialect",
    "resolve_dialect",
]


def make_dialect(
    name: str,
    tokenizer: Tokenizer,
    instruction: str | None = None,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    system_prompt: str | None = None,
    summary_instruction: str | None = None,
    eos_ids: Sequence[int] = (),
    prompt_date: date = DEFAULT_DATE,
) -> BaseDialect:
    """Instantiate the dialect `name`, bound to `tokenizer`.

    Args:
        name: name of a built-in dialect or an entry point, or `module:Name`.
        tokenizer: tokenizer of the model.
        instruction: text before the question (None: the dialect's default, "": only the question).
        chat_template_kwargs: variables of the chat template, such as `enable_thinking`.
        system_prompt: optional system prompt.
        summary_instruction: request for a summary when a chain is folded, without the tag (None:
            the dialect's default).
        eos_ids: stop tokens of the model's generation settings.
        prompt_date: date that a chat template shows.

    Raises UserError for an unknown name, for a tokenizer that is incompatible with the dialect, and
    for variables or a system prompt that the chat template does not support.
    """
    return resolve_dialect(name)(
        tokenizer,
        instruction,
        dict(chat_template_kwargs or {}),
        system_prompt,
        summary_instruction,
        tuple(eos_ids),
        prompt_date,
    )


def resolve_dialect(name: str) -> type[BaseDialect]:
    """Return the class of the dialect `name`. Raises UserError if the name is unknown or is not a
    dialect."""
    found: type[BaseDialect] = resolve(ComponentKind.DIALECT, name)
    return found


# -- check that a tokenizer preserves texts, which every dialect requires ----------------------

QUESTION = "Who was born first, Ada Lind or Bo Berg?"
RESULTS = "result 1: Ada Lind\nresult 2: Bo Berg"


def check_part_encoding(tokenizer: Tokenizer) -> list[str]:
    """Return a message if a tokenizer cannot encode the parts of a prompt separately, else []."""
    born, first = (encode_untrusted(tokenizer, part) for part in ("born", "first"))
    if tokenizer.decode(born) != "born" or tokenizer.decode([*born, *first]) == "bornfirst":
        return []
    return [
        "The tokenizer writes a space before each separately encoded text, like SentencePiece,"
        " but prompts are encoded in parts."
    ]


def check_round_trip(dialect: Dialect) -> list[str]:
    """Return messages about texts that change when encoded and decoded; empty if none does."""
    tokenizer = dialect.tokenizer

    def differs(ids: Sequence[int], text: str) -> bool:
        return tokenizer.decode(ids) != text

    if errors_apart := check_part_encoding(tokenizer):
        return errors_apart
    errors = [
        f"The tokenizer turns the tag {tag!r} into {tokenizer.decode(ids)!r}."
        for tag in dialect.tags
        if differs(ids := dialect.encode_policy_text(tag), tag)
    ]
    if QUESTION not in tokenizer.decode(dialect.encode_prompt(QUESTION, [])):
        errors.append("The tokenizer does not preserve the text of a question in the prompt.")
    block = dialect.render_observation(RESULTS)
    if differs(dialect.encode_observation(RESULTS), block):
        errors.append(f"The tokenizer does not preserve the text of the observation {block!r}.")
    return errors
