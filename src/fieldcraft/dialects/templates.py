"""What a recipe sets of a tokenizer's chat template: its variables and a system prompt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import Environment, TemplateError
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.meta import find_undeclared_variables

from fieldcraft.config.names import advice
from fieldcraft.types import Tokenizer, UserError

# What the framework or transformers gives to a template.
GIVEN = {"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"}
# transformers' own tag, which marks what an assistant wrote; it changes no text.
GENERATION = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")


def template_variables(tokenizer: Tokenizer) -> set[str]:
    """The variables of the chat template that are not given to it anyway."""
    used: set[str] = set()
    for source in _sources(tokenizer.chat_template):
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(GENERATION.sub("", source))
        used |= find_undeclared_variables(tree)
    return used - GIVEN - DEFAULT_NAMESPACE.keys()


def _sources(template: Any) -> Iterator[str]:
    """A tokenizer may have no template, one, or several by name."""
    match template:
        case str(source):
            yield source
        case dict(named):
            yield from named.values()


def check_variables(tokenizer: Tokenizer, given: Mapping[str, Any]) -> None:
    """Raises UserError for a variable that the chat template never mentions."""
    if tokenizer.chat_template is None:
        raise UserError(
            "The tokenizer has no chat template, so remove 'template' from the recipe or use a"
            " model that was tuned on conversations."
        )
    known = template_variables(tokenizer)
    for name in given:
        if name not in known:
            raise UserError(
                f"The chat template of the model has no variable '{name}'; {advice(name, known)}"
            )


def check_system(tokenizer: Tokenizer, system: str, given: Mapping[str, Any]) -> None:
    """Raises UserError where a system prompt would not reach the model."""
    if tokenizer.chat_template is None:
        raise UserError(
            "The tokenizer has no chat template, so a system prompt has no place; write its text"
            " into 'instruction'."
        )
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "?"}]
    try:
        text: str = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, **given
        )
    except TemplateError as error:
        raise UserError(
            f"The chat template of the model refuses a system prompt ({error}); write its text"
            " into 'instruction'."
        ) from error
    if system.strip() not in text:
        raise UserError(
            "The chat template of the model does not show a system prompt; write its text into"
            " 'instruction'."
        )
