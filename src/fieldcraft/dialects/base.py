"""Common parts of the dialects: a prompt around a question, observations as plain text, grammars.

White space is part of a dialect, and sampling must be able to reproduce the ids of a demonstration:
the prompt ends where the policy starts to write, a turn ends exactly with its stop string or with
the end-of-sequence token, and the white space between a turn and an observation belongs to the
observation.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from fieldcraft.config.sections import DEFAULT_DATE
from fieldcraft.dialects.chat_template import (
    render_chat,
    require_plain_opening,
    require_system_prompt,
    require_template_variables,
)
from fieldcraft.dialects.turn_end import find_turn_end
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.sampling import TurnEnd
from fieldcraft.types import (
    ONLY_OBSERVATION,
    Answer,
    MalformedCall,
    ObservationPosition,
    Thought,
    ThoughtRole,
    Tokenizer,
    ToolCall,
    ToolCalls,
    UserError,
)

OBSERVATION_PLACEHOLDER = "\0"  # is between two policy turns when a grammar reads them as one text
TEXT_PLACEHOLDER = "\ue000"  # holds the place of plain text while a chat template is rendered
SUMMARY_TAGS = ("<summary>", "</summary>")
SUMMARY_INSTRUCTION = """\
My context is nearly full, and I go on without it. I sum up all that I have found so far and what \
is still to be done.
"""


def encode_untrusted(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode text of unknown origin: neither special tokens nor other added tokens are recognised.

    `split_special_tokens=True` would still turn a `</tool_call>` in a search result into the
    structural token of that name where the vocabulary has it as an added, non-special token.
    """
    backend = tokenizer.backend_tokenizer
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    pieces = [text]
    if backend.pre_tokenizer is not None:
        pieces = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
    return [token.id for piece in pieces for token in backend.model.tokenize(piece)]


def encode_policy_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode text as the policy writes it: tags may be added tokens, special tokens are text."""
    return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)


def encode_template(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode what the framework itself writes: special tokens are recognised."""
    return list(_encode_template(tokenizer, text))


@lru_cache(maxsize=64)  # few texts, thousands of times each
def _encode_template(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))


@lru_cache(maxsize=64)
def get_bos_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the special tokens that the tokenizer puts before a whole text. What it puts behind
    one, as an end of the sequence, belongs to no prompt."""
    bare = tokenizer.encode("a", add_special_tokens=False)
    full = tokenizer.encode("a", add_special_tokens=True)
    places = range(len(full) - len(bare) + 1)
    return next((tuple(full[:i]) for i in places if full[i : i + len(bare)] == bare), ())


def get_special_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    return {index: token.content for index, token in added.items() if token.special}


def make_untagged_regex(tags: Sequence[str]) -> str:
    """Return a regular expression for any text without `tags` (and without an observation)."""
    forbidden = "|".join(re.escape(tag) for tag in (*tags, OBSERVATION_PLACEHOLDER))
    return rf"(?:(?!{forbidden})[\s\S])*+"


def strip_think_prefill(text: str) -> str:
    """Return a generation prompt without the thinking part that templates of reasoning models
    open."""
    return re.sub(r"<think>\s*\Z", "", text)


def find_open_role(turn: str) -> str | None:
    """Return the role of the block that a turn has opened last, if it has not closed it."""
    names = re.findall(rf"<(/?(?:{'|'.join(ThoughtRole)}))>", turn)
    return None if not names or names[-1].startswith("/") else str(names[-1])


@dataclass(frozen=True)
class BaseDialect(ABC):
    """A dialect bound to a tokenizer.

    Args:
        tokenizer: of the model that speaks the dialect.
        instruction: is before the question in the user's message; None means the dialect's
            own, "" the question alone.
        chat_template_kwargs: variables of the tokenizer's chat template.
        system_prompt: a system prompt, in which special tokens count; None leaves it to the
            template.
        summary_instruction: is before the tag of a summary where a chain is folded; None means the
            dialect's own, "" the tag alone.
        eos_ids: tokens after which the model's `generation_config.json` stops.
        prompt_date: the date that a chat template shows.

    Raises UserError for a tokenizer that makes special tokens out of plain text, for a variable
    that its chat template never mentions, for a system prompt that the template does not show, and
    for a template that puts special tokens before the text of a turn.
    """

    tokenizer: Tokenizer
    instruction: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    system_prompt: str | None = None
    summary_instruction: str | None = None
    eos_ids: tuple[int, ...] = ()
    prompt_date: date = DEFAULT_DATE

    name: ClassVar[str]
    stop_strings: ClassVar[tuple[str, ...]]
    tags: ClassVar[tuple[str, ...]]
    default_instruction: ClassVar[str]
    default_summary_instruction: ClassVar[str | None] = (
        None  # None: a chain of the dialect cannot be folded
    )
    observation_padding: ClassVar[str] = (
        ""  # between the frame's opening and the text of an observation
    )

    def __post_init__(self) -> None:
        special = get_special_tokens(self.tokenizer)
        for token in special.values():
            if not special.keys().isdisjoint(encode_untrusted(self.tokenizer, token)):
                raise UserError(
                    f"The tokenizer encodes the plain text {token!r} as a special token, so a tool "
                    "could forge one; use a tokenizer whose model does not contain its special "
                    "tokens, such as byte-level BPE."
                )
        if self.chat_template_kwargs:
            require_template_variables(self.tokenizer, self.chat_template_kwargs)
        require_plain_opening(self.tokenizer, special.values(), self.chat_template_kwargs)
        if self.system_prompt is not None:
            require_system_prompt(self.tokenizer, self.system_prompt, self.chat_template_kwargs)
        _ = self.turn_end  # a mistake is found before anything is sampled

    @cached_property
    def turn_end(self) -> TurnEnd:
        """Tokens that end a turn of the policy."""
        return find_turn_end(self.tokenizer, self.eos_ids, self.chat_template_kwargs)

    def strip_think_prefill(self, text: str) -> str:
        """Return a generation prompt without the thinking part that a template opens at its end;
        where the dialect writes thinking parts of its own, also without one that the template
        closes, as those of models that are told not to think. DeepSeek V3.1 closes one without
        opening it."""
        if "<think>" in self.tags:
            text = re.sub(r"(?:<think>\s*)?</think>\s*\Z", "", text)
        return strip_think_prefill(text)

    @property
    def tagged_roles(self) -> tuple[ThoughtRole, ...]:
        return tuple(role for role in ThoughtRole if f"</{role}>" in self.tags)

    def parse_unfinished_thought(self, turn: str, name: str, tool: str) -> ToolCalls | None:
        """Return what a turn asks for that ends inside of a thought. That is nothing, but where a
        call ended it the policy is told why that was not read."""
        if f"</{name}>" not in turn:
            return None
        return (
            MalformedCall(
                f"A call stands after the thought: write </think> before <{name}>.", tool
            ),
        )

    @abstractmethod
    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None: ...

    @abstractmethod
    def render_thought(self, text: str) -> str: ...

    def render_thoughts(self, thoughts: Sequence[Thought]) -> str:
        """Write thoughts. Those of every role are one text, in paragraphs, where a dialect has no
        tags for roles."""
        return self.render_thought("\n\n".join(thought.text for thought in thoughts))

    @abstractmethod
    def render_call(self, call: ToolCall) -> str: ...

    @abstractmethod
    def render_answer(self, text: str) -> str: ...

    @abstractmethod
    def observation_delimiters(
        self, position: ObservationPosition = ONLY_OBSERVATION
    ) -> tuple[str, str]: ...

    @abstractmethod
    def matches_grammar(self, joined_turns: str) -> bool:
        """Return whether the turns, joined by OBSERVATION and without the end-of-sequence token,
        are those of a complete trajectory."""

    def render_prompt_parts(self, tools: Sequence[dict[str, Any]]) -> tuple[str, str]:
        """Return the prompt's text before and after the question."""
        own = self.default_instruction if self.instruction is None else self.instruction
        return self.render_message_parts(own, tools)

    def render_message_parts(
        self,
        instruction: str,
        tools: Sequence[dict[str, Any]] = (),
        system_prompt: str | None = None,
    ) -> tuple[str, str]:
        """Return the text before and after a first message of the user's that begins with an
        instruction; `system_prompt` takes the place of the recipe's system prompt. A tokenizer
        without a chat template is a base model's; its prompt has the message as plain text, on its
        own line. The dialect decides whether a `<think>` is prefilled, so the template's own is
        removed."""
        content = f"{instruction}\n\n{TEXT_PLACEHOLDER}" if instruction else TEXT_PLACEHOLDER
        if self.tokenizer.chat_template is None:
            return content.removesuffix(TEXT_PLACEHOLDER), "\n"
        text = self.render_conversation(
            [{"role": "user", "content": content}], tools, system_prompt
        )
        before, mark, after = text.partition(TEXT_PLACEHOLDER)
        if not mark:
            raise UserError("The chat template does not show the user's message: restore its file.")
        return before, self.strip_think_prefill(after)

    def render_conversation(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        system_prompt: str | None = None,
    ) -> str:
        """Render the chat template's text of a conversation, up to where the policy writes. Its
        system prompt is the recipe's, unless `system_prompt` is another one."""
        system_prompt = self.system_prompt if system_prompt is None else system_prompt
        first = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        with raise_read_errors("the model's chat template", "correct its chat_template.jinja"):
            return render_chat(
                self.tokenizer,
                [*first, *messages],
                self.prompt_date,
                tools=list(tools) or None,
                add_generation_prompt=True,
                **self.chat_template_kwargs,
            )

    def encode_prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[int]:
        return self.encode_prompt_parts(self.render_prompt_parts(tools), question)

    def encode_prompt_parts(self, parts: tuple[str, str], question: str) -> list[int]:
        """Encode a prompt as token ids; only what is around the question may hold special
        tokens."""
        before, after = parts
        # Only a chat template writes the beginning-of-sequence token itself.
        bare = self.tokenizer.chat_template is None
        return [
            *(get_bos_ids(self.tokenizer) if bare else ()),
            *encode_template(self.tokenizer, before),
            *encode_untrusted(self.tokenizer, question.strip()),
            *encode_template(self.tokenizer, after),
        ]

    @property
    def summary_prompt(self) -> str | None:
        if self.default_summary_instruction is None:
            return None
        given, default = self.summary_instruction, self.default_summary_instruction
        return f"{default if given is None else given}{SUMMARY_TAGS[0]}\n"

    @property
    def answer_opening(self) -> str:
        """Text that `render_answer` begins with."""
        return self.render_answer(TEXT_PLACEHOLDER).partition(TEXT_PLACEHOLDER)[0]

    def render_answer_opening(self, turn: str) -> str:
        """Return the text that opens an answer. A thought that is still open is closed as
        `render_thought` closes one, and a block of another role in the same way."""
        if (role := find_open_role(turn)) is None:
            closing = "" if not turn or turn.endswith("\n") else "\n"
        else:
            closing = self.render_thought(TEXT_PLACEHOLDER).partition(TEXT_PLACEHOLDER)[2]
            closing = closing.replace("</think>", f"</{role}>")
            closing = closing if f"</{role}>" in closing else f"\n</{role}>{closing}"
        return closing + self.answer_opening

    @property
    def example_final_turn(self) -> str:
        return self.render_thought("So it is.") + self.render_answer("x")

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        if len(calls) != 1:
            raise UserError(
                f"The dialect {self.name} makes one call in a turn, not {len(calls)}; use the "
                "dialect hermes, or let every action be followed by its observation."
            )
        return self.render_call(calls[0])

    def render_observation(
        self, text: str, position: ObservationPosition = ONLY_OBSERVATION
    ) -> str:
        opening, closing = self.observation_delimiters(position)
        return opening + self.observation_padding + text + closing

    def encode_observation(
        self, text: str, position: ObservationPosition = ONLY_OBSERVATION
    ) -> list[int]:
        opening, closing = self.observation_delimiters(position)
        return [
            *encode_template(self.tokenizer, opening),
            *encode_untrusted(self.tokenizer, self.observation_padding + text),
            *encode_template(self.tokenizer, closing),
        ]

    def is_well_formed(self, turns: Sequence[str]) -> bool:
        if not turns or any(OBSERVATION_PLACEHOLDER in turn for turn in turns):
            return False
        # Where no string stops a turn, each ends with an end token, else the last one.
        before = turns[:-1] if self.stop_strings else map(self.turn_end.strip, turns[:-1])
        joined_turns = OBSERVATION_PLACEHOLDER.join((*before, self.turn_end.strip(turns[-1])))
        forged = any(token in joined_turns for token in get_special_tokens(self.tokenizer).values())
        return not forged and self.matches_grammar(joined_turns)


@dataclass(frozen=True)
class SingleToolDialect(BaseDialect):
    """A dialect with one tool, whose name its tags replace."""

    tool_name: ClassVar[str]
    delimiters: ClassVar[tuple[str, str]]  # around an observation

    def encode_prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[int]:
        """Encode the prompt. The instruction describes the tool; `tools` may hold that one."""
        for tool in tools:
            if tool["function"]["name"] != self.tool_name:
                raise UserError(
                    f"The dialect {self.name} can only call `{self.tool_name}`, not "
                    f"`{tool['function']['name']}`; use the dialect hermes for other tools."
                )
        return super().encode_prompt(question, [])

    def observation_delimiters(
        self, position: ObservationPosition = ONLY_OBSERVATION
    ) -> tuple[str, str]:
        return self.delimiters


@dataclass(frozen=True)
class SearchDialect(SingleToolDialect):
    """A dialect with the tool `search(query)`."""

    tool_name = "search"
    call_tags: ClassVar[tuple[str, str]]

    def render_call(self, call: ToolCall) -> str:
        if call.tool != "search" or call.arguments.keys() != {"query"}:
            raise UserError(f"The dialect {self.name} can only write search(query), not {call}.")
        opening, closing = self.call_tags
        return f"{opening} {str(call.arguments['query']).strip()} {closing}"

    def parse_call(self, text: str) -> ToolCalls | None:
        """Read the first call that is closed in `text`. What follows it is ignored: the last
        sampled token may hold more characters than the stop string needs."""
        opening, closing = self.call_tags
        head, closed, _ = text.partition(closing)
        if not closed:
            return None
        _, opened, query = head.rpartition(opening)
        if not opened or not query.strip():
            reason = f"Nothing to search for: write {opening} query {closing}."
            return (MalformedCall(reason, "search"),)
        return (ToolCall("search", {"query": query.strip()}),)
