"""Chat template of a tokenizer: settings of a recipe, and the tokens that end a turn.

The settings are template variables and a system prompt. A chat-tuned model ends its turns with the
token that its chat template writes there (`<|im_end|>`, `<end_of_turn>`, `<|eot_id|>`). Its
tokenizer may define another one as the end of a sequence, and its `generation_config.json` lists
several.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any

from jinja2 import Environment
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.meta import find_undeclared_variables

from fieldcraft.config.names import suggest_name
from fieldcraft.config.sections import DEFAULT_DATE
from fieldcraft.records.reading import DamagedFileError, raise_read_errors
from fieldcraft.sampling import TurnEnd
from fieldcraft.types import Tokenizer, UserError

PROBE_TOOL = "lookup_gamma"  # name of a tool that no template contains
DSML_TOKEN = "｜DSML｜"  # in the tags of calls of DeepSeek V3.2 and V4
TURN_PLACEHOLDER = "\ue001"  # text of a turn while a chat template is rendered
# Variables that the framework or transformers passes to a template.
BUILTIN_VARIABLES = {
    "messages",
    "tools",
    "add_generation_prompt",
    "raise_exception",
    "strftime_now",
}
MAX_TOKEN_ID = 2**32 - 1  # of a tokenizer
# transformers' own tag, which marks assistant text; it does not change the output.
GENERATION_TAG_REGEX = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
CLOCK_CALL_REGEX = re.compile(
    r"""strftime_now\s*\(\s*(['"])(.*?)\1\s*\)"""
)  # with a literal format
OTHER_CLOCK_REGEX = re.compile(r"strftime_now\b(?!\s+is\s+(?:not\s+)?defined)")


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    prompt_date: date = DEFAULT_DATE,
    **options: Any,
) -> str:
    """Render a conversation with the chat template. A template that shows the date shows
    `prompt_date`.

    Raises UserError for a template that computes the format of the date or assigns another name to
    the clock function.
    """
    if any("strftime_now" in source for source in _iter_sources(tokenizer.chat_template)):
        source = tokenizer.get_chat_template(tools=options.get("tools"))
        options["chat_template"] = _insert_date(source, prompt_date)
    text: str = tokenizer.apply_chat_template(list(map(dict, messages)), tokenize=False, **options)
    return text


def _insert_date(source: str, prompt_date: date) -> str:
    """Return a template in which the date replaces the calls of transformers' clock function."""
    dated = CLOCK_CALL_REGEX.sub(
        lambda call: f"{call[1]}{prompt_date.strftime(call[2])}{call[1]}", source
    )
    if OTHER_CLOCK_REGEX.search(dated):
        raise UserError(
            "The chat template of the model reads the clock in a format that it computes or under"
            " another name, so prompts would change from day to day: write the date into its"
            " chat_template.jinja."
        )
    return dated


def shows_date(tokenizer: Tokenizer, variables: Mapping[str, Any]) -> bool:
    """Return whether the chat template shows the current date."""
    if "date_string" in variables:
        return False
    return any("strftime_now" in source for source in _iter_sources(tokenizer.chat_template))


def list_template_variables(tokenizer: Tokenizer) -> set[str]:
    """Return the variables of the chat template, except those that are always passed."""
    used: set[str] = set()
    jinja = Environment(extensions=["jinja2.ext.loopcontrols"])
    for source in _iter_sources(tokenizer.chat_template):
        with _raise_template_errors():
            used |= find_undeclared_variables(jinja.parse(GENERATION_TAG_REGEX.sub("", source)))
    return used - BUILTIN_VARIABLES - DEFAULT_NAMESPACE.keys()


def _raise_template_errors() -> AbstractContextManager[None]:
    """Convert errors of the chat template in the block, which may be any exception, to a
    DamagedFileError."""
    return raise_read_errors("the model's chat template", "correct its chat_template.jinja")


@contextmanager
def _ignore_template_errors() -> Iterator[None]:
    """Ignore errors of the chat template in the block: it may reject a conversation, or fail on
    it."""
    with suppress(DamagedFileError), _raise_template_errors():
        yield


def _iter_sources(template: Any) -> Iterator[str]:
    """Yield the sources of a template. A tokenizer may have no template, one, or several by
    name."""
    match template:
        case str(source):
            yield source
        case dict(named):
            yield from named.values()


def require_template_variables(tokenizer: Tokenizer, variables: Mapping[str, Any]) -> None:
    """Raise UserError for a variable that the chat template does not use."""
    if tokenizer.chat_template is None:
        raise UserError(
            "The tokenizer has no chat template, so remove 'chat_template_kwargs' from the recipe"
            " or use a model that was tuned on conversations."
        )
    known = list_template_variables(tokenizer)
    for name in variables:
        if name not in known:
            advice = suggest_name(name, known) if known else "remove it."
            raise UserError(f"The chat template of the model has no variable '{name}'; {advice}")


def require_system_prompt(
    tokenizer: Tokenizer, system_prompt: str, variables: Mapping[str, Any]
) -> None:
    """Raise UserError if a system prompt would not reach the model."""
    if tokenizer.chat_template is None:
        raise UserError(
            "The tokenizer has no chat template, so it cannot show a system prompt; write its text"
            " into 'instruction'."
        )
    messages = [{"role": "system", "content": system_prompt}, {"role": "user", "content": "?"}]
    try:
        with _raise_template_errors():
            text = render_chat(tokenizer, messages, add_generation_prompt=True, **variables)
    except DamagedFileError as error:
        raise UserError(
            f"The chat template of the model rejects a system prompt ({error.__cause__}); write its"
            " text into 'instruction'."
        ) from error
    if system_prompt.strip() not in text:
        raise UserError(
            "The chat template of the model does not show a system prompt; write its text into"
            " 'instruction'."
        )


def supports_system_prompt(tokenizer: Tokenizer, variables: Mapping[str, Any]) -> bool:
    """Return whether the chat template supports a system prompt, that is, shows it outside of model
    turns."""
    if tokenizer.chat_template is None:
        return False

    def render_role(role: str) -> str:
        messages = [{"role": role, "content": TURN_PLACEHOLDER}, {"role": "user", "content": "?"}]
        text = ""
        with _ignore_template_errors():
            text = render_chat(tokenizer, messages, add_generation_prompt=True, **variables)
        return text

    return TURN_PLACEHOLDER in render_role("system") and render_role("system") != render_role(
        "assistant"
    )


def mentions_role(tokenizer: Tokenizer, role: str) -> bool:
    """Return whether the chat template has dedicated text for messages of a role. Many templates
    render any role name, including roles that the model was not trained with."""
    return any(
        f"{quote}{role}{quote}" in source
        for source in _iter_sources(tokenizer.chat_template)
        for quote in "'\""
    )


def renders_calls(tokenizer: Tokenizer, variables: Mapping[str, Any]) -> bool:
    """Return whether the chat template renders the tool calls of a message, in any format."""
    for arguments in ({"query": "x"}, '{"query": "x"}'):  # templates expect one of them
        function = {"name": PROBE_TOOL, "arguments": arguments}
        call = {"id": "call00001", "type": "function", "function": function}
        reply = {"role": "assistant", "content": "", "tool_calls": [call]}
        # A template may reject such a conversation, or fail on the form of its arguments.
        with suppress(UserError), raise_read_errors("the model's chat template", "correct it"):
            text = render_chat(tokenizer, [{"role": "user", "content": "?"}, reply], **variables)
            if PROBE_TOOL in text:
                return True
    return False


def require_template_for_program(tokenizer: Tokenizer, folder: Path) -> None:
    """Raise UserError for a tokenizer without a chat template whose model has a program that writes
    its conversations, such as those of DeepSeek V3.2 and V4."""
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    if tokenizer.chat_template is None and any(t.content == DSML_TOKEN for t in added.values()):
        raise UserError(
            f"{folder} has no chat template, because a program of DeepSeek writes the conversations"
            f" of its model: save a template with the same text as {folder / 'chat_template.jinja'}"
            " (models/templates of llama.cpp has deepseek-ai-DeepSeek-V3.2.jinja and -V4.jinja), or"
            " name dialect=autocoa, which has text tags."
        )


def require_plain_opening(
    tokenizer: Tokenizer, special: Collection[str], variables: Mapping[str, Any]
) -> None:
    """Raise UserError for a chat template that writes special tokens between the start of the
    model's turn and its text, as for models that answer in channels. These tokens would be part of
    every answer and missing in every demonstration."""
    if tokenizer.chat_template is None:
        return
    question = {"role": "user", "content": "?"}
    reply = {"role": "assistant", "content": TURN_PLACEHOLDER}
    prompt = conversation = ""
    with _ignore_template_errors():
        prompt = render_chat(tokenizer, [question], add_generation_prompt=True, **variables)
        conversation = render_chat(tokenizer, [question, reply], **variables)
    before, has_turn, _ = conversation.rpartition(TURN_PLACEHOLDER)
    opening = before.removeprefix(prompt) if has_turn and before.startswith(prompt) else ""
    if any(token in opening for token in set(special) - {"<think>", "</think>"}):
        raise UserError(
            f"The chat template of the model writes {opening!r} before the text of a turn, which at"
            " most the dialect auto supports: use it, or a model whose turns start with their text."
        )


# -- end of a turn -----------------------------------------------------------------------------


def find_turn_end(
    tokenizer: Tokenizer, configured: Sequence[int] = (), variables: Mapping[str, Any] | None = None
) -> TurnEnd:
    """Return the tokens that end a turn.

    Args:
        tokenizer: tokenizer of the model.
        configured: end tokens of its `generation_config.json`. Those that the tokenizer lacks have
            no text, and are left out.
        variables: variables of the chat template.

    Raises UserError if no token ends a sequence.
    """
    configured = [i for i in configured if _has_token(tokenizer, i)]
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


def _has_token(tokenizer: Tokenizer, token_id: int) -> bool:
    backend = tokenizer.backend_tokenizer
    return 0 <= token_id <= MAX_TOKEN_ID and backend.id_to_token(token_id) is not None


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
    with _ignore_template_errors():
        rendered = render_chat(tokenizer, messages, **variables)
    _, has_turn, after = rendered.rpartition(TURN_PLACEHOLDER)
    ids = tokenizer.encode(after.lstrip(), add_special_tokens=False) if has_turn else []
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    return ids[0] if ids and ids[0] in added and added[ids[0]].special else None
