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

from fieldcraft.config.sections import DATE
from fieldcraft.dialects.templates import (
    check_opening,
    check_system,
    check_variables,
    render_chat,
)
from fieldcraft.dialects.turn_end import find_turn_end
from fieldcraft.records.reading import reading
from fieldcraft.sampling import TurnEnd
from fieldcraft.types import (
    ALONE,
    Action,
    Answer,
    Calls,
    Malformed,
    Place,
    Role,
    Thought,
    Tokenizer,
    UserError,
)

OBSERVATION = "\0"  # is between two policy turns when a grammar reads them as one text
MARK = "\ue000"  # holds the place of plain text while a chat template is rendered
SUMMARY = ("<summary>", "</summary>")
REQUEST = """\
My context is nearly full, and I go on without it. I sum up all that I have found so far and what \
is still to be done.
"""


def encode_plain(tokenizer: Tokenizer, text: str) -> list[int]:
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


def encode_written(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode text as the policy writes it: tags may be added tokens, special tokens are text."""
    return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)


def encode_frame(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode what the framework itself writes: special tokens are recognised."""
    return list(_encode_frame(tokenizer, text))


@lru_cache(maxsize=64)  # few texts, thousands of times each
def _encode_frame(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))


@lru_cache(maxsize=64)
def beginning(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the special tokens that the tokenizer puts before a whole text. What it puts behind
    one, as an end of the sequence, belongs to no prompt."""
    bare = tokenizer.encode("a", add_special_tokens=False)
    whole = tokenizer.encode("a", add_special_tokens=True)
    places = range(len(whole) - len(bare) + 1)
    return next((tuple(whole[:i]) for i in places if whole[i : i + len(bare)] == bare), ())


def special_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    return {index: token.content for index, token in added.items() if token.special}


def plain(tags: Sequence[str]) -> str:
    """Return a regular expression for any text without `tags` (and without an observation)."""
    forbidden = "|".join(re.escape(tag) for tag in (*tags, OBSERVATION))
    return rf"(?:(?!{forbidden})[\s\S])*+"


def without_think(text: str) -> str:
    """Return a generation prompt without the thinking part that templates of reasoning models
    open."""
    return re.sub(r"<think>\s*\Z", "", text)


def open_role(turn: str) -> str | None:
    """Return the role of the block that a turn has opened last, if it has not closed it."""
    names = re.findall(rf"<(/?(?:{'|'.join(Role)}))>", turn)
    return None if not names or names[-1].startswith("/") else str(names[-1])


@dataclass(frozen=True)
class BaseDialect(ABC):
    """A dialect bound to a tokenizer.

    Args:
        tokenizer: of the model that speaks the dialect.
        instruction: is before the question in the user's message; None means the dialect's
            own, "" the question alone.
        template: variables of the tokenizer's chat template.
        system: a system prompt, in which special tokens count; None leaves it to the template.
        request: is before the tag of a summary where a chain is folded; None means the dialect's
            own, "" the tag alone.
        ends: tokens after which the model's `generation_config.json` stops.
        day: the date that a chat template shows.

    Raises UserError for a tokenizer that makes special tokens out of plain text, for a variable
    that its chat template never mentions, for a system prompt that the template does not show, and
    for a template that puts special tokens before the text of a turn.
    """

    tokenizer: Tokenizer
    instruction: str | None = None
    template: Mapping[str, Any] = field(default_factory=dict, hash=False)
    system: str | None = None
    request: str | None = None
    ends: tuple[int, ...] = ()
    day: date = DATE

    name: ClassVar[str]
    stop: ClassVar[tuple[str, ...]]
    tags: ClassVar[tuple[str, ...]]
    own_instruction: ClassVar[str]
    own_request: ClassVar[str | None] = None  # None: a chain of the dialect cannot be folded
    padding: ClassVar[str] = ""  # between the frame's opening and the text of an observation

    def __post_init__(self) -> None:
        special = special_tokens(self.tokenizer)
        for token in special.values():
            if not special.keys().isdisjoint(encode_plain(self.tokenizer, token)):
                raise UserError(
                    f"The tokenizer encodes the plain text {token!r} as a special token, so a tool "
                    "could forge one; use a tokenizer whose model does not contain its special "
                    "tokens, such as byte-level BPE."
                )
        if self.template:
            check_variables(self.tokenizer, self.template)
        check_opening(self.tokenizer, special.values(), self.template)
        if self.system is not None:
            check_system(self.tokenizer, self.system, self.template)
        _ = self.end  # a mistake is found before anything is sampled

    @cached_property
    def end(self) -> TurnEnd:
        """Tokens that end a turn of the policy."""
        return find_turn_end(self.tokenizer, self.ends, self.template)

    def without_think(self, text: str) -> str:
        """Return a generation prompt without the thinking part that a template opens at its end;
        where the dialect writes thinking parts of its own, also without one that the template
        closes, as those of models that are told not to think. DeepSeek V3.1 closes one without
        opening it."""
        if "<think>" in self.tags:
            text = re.sub(r"(?:<think>\s*)?</think>\s*\Z", "", text)
        return without_think(text)

    @property
    def apart(self) -> tuple[Role, ...]:
        return tuple(role for role in Role if f"</{role}>" in self.tags)

    def unfinished(self, turn: str, name: str, tool: str) -> Calls | None:
        """Return what a turn asks for that ends inside of a thought. That is nothing, but where a
        call ended it the policy is told why that was not read."""
        if f"</{name}>" not in turn:
            return None
        return (
            Malformed(f"A call stands after the thought: write </think> before <{name}>.", tool),
        )

    @abstractmethod
    def parse(self, written: Sequence[str]) -> Answer | Calls | None: ...

    @abstractmethod
    def write_thought(self, text: str) -> str: ...

    def write_thoughts(self, thoughts: Sequence[Thought]) -> str:
        """Write thoughts. Those of every role are one text, in paragraphs, where a dialect has no
        tags for roles."""
        return self.write_thought("\n\n".join(thought.text for thought in thoughts))

    @abstractmethod
    def write_action(self, action: Action) -> str: ...

    @abstractmethod
    def write_answer(self, text: str) -> str: ...

    @abstractmethod
    def observation_frame(self, place: Place = ALONE) -> tuple[str, str]: ...

    @abstractmethod
    def obeys_grammar(self, turns: str) -> bool:
        """Return whether the turns, joined by OBSERVATION and without the end-of-sequence token,
        are those of a complete trajectory."""

    def prompt_frame(self, tools: Sequence[dict[str, Any]]) -> tuple[str, str]:
        """Return the prompt's text before and after the question."""
        own = self.own_instruction if self.instruction is None else self.instruction
        return self.message_frame(own, tools)

    def message_frame(
        self,
        instruction: str,
        tools: Sequence[dict[str, Any]] = (),
        system: str | None = None,
    ) -> tuple[str, str]:
        """Return the text before and after a first message of the user's that begins with an
        instruction; `system` takes the place of the recipe's system prompt. A tokenizer without a
        chat template is a base model's; its prompt has the message as plain text, on its own line.
        The dialect decides whether a `<think>` is prefilled, so the template's own is removed."""
        content = f"{instruction}\n\n{MARK}" if instruction else MARK
        if self.tokenizer.chat_template is None:
            return content.removesuffix(MARK), "\n"
        text = self.render([{"role": "user", "content": content}], tools, system)
        before, mark, after = text.partition(MARK)
        if not mark:
            raise UserError("The chat template does not show the user's message: restore its file.")
        return before, self.without_think(after)

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        system: str | None = None,
    ) -> str:
        """Render the chat template's text of a conversation, up to where the policy writes. Its
        system prompt is the recipe's, unless `system` is another one."""
        system = self.system if system is None else system
        first = [] if system is None else [{"role": "system", "content": system}]
        with reading("the model's chat template", "correct its chat_template.jinja"):
            return render_chat(
                self.tokenizer,
                [*first, *messages],
                self.day,
                tools=list(tools) or None,
                add_generation_prompt=True,
                **self.template,
            )

    def prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[int]:
        return self.encode_prompt(self.prompt_frame(tools), question)

    def encode_prompt(self, frame: tuple[str, str], question: str) -> list[int]:
        """Encode a prompt as token ids; only what is around the question may hold special
        tokens."""
        before, after = frame
        # Only a chat template writes the beginning-of-sequence token itself.
        bare = self.tokenizer.chat_template is None
        return [
            *(beginning(self.tokenizer) if bare else ()),
            *encode_frame(self.tokenizer, before),
            *encode_plain(self.tokenizer, question.strip()),
            *encode_frame(self.tokenizer, after),
        ]

    @property
    def summary_request(self) -> str | None:
        if self.own_request is None:
            return None
        return f"{self.own_request if self.request is None else self.request}{SUMMARY[0]}\n"

    @property
    def answer_opening(self) -> str:
        """Text that `write_answer` begins with."""
        return self.write_answer(MARK).partition(MARK)[0]

    def open_answer(self, turn: str) -> str:
        """Return the text that opens an answer. A thought that is still open is closed as
        `write_thought` closes one, and a block of another role in the same way."""
        if (role := open_role(turn)) is None:
            closing = "" if not turn or turn.endswith("\n") else "\n"
        else:
            closing = self.write_thought(MARK).partition(MARK)[2]
            closing = closing.replace("</think>", f"</{role}>")
            closing = closing if f"</{role}>" in closing else f"\n</{role}>{closing}"
        return closing + self.answer_opening

    @property
    def any_ending(self) -> str:
        return self.write_thought("So it is.") + self.write_answer("x")

    def write_calls(self, actions: Sequence[Action]) -> str:
        if len(actions) != 1:
            raise UserError(
                f"The dialect {self.name} makes one call in a turn, not {len(actions)}; use the "
                "dialect hermes, or let every action be followed by its observation."
            )
        return self.write_action(actions[0])

    def write_observation(self, text: str, place: Place = ALONE) -> str:
        opening, closing = self.observation_frame(place)
        return opening + self.padding + text + closing

    def encode_observation(self, text: str, place: Place = ALONE) -> list[int]:
        opening, closing = self.observation_frame(place)
        return [
            *encode_frame(self.tokenizer, opening),
            *encode_plain(self.tokenizer, self.padding + text),
            *encode_frame(self.tokenizer, closing),
        ]

    def well_formed(self, written: Sequence[str]) -> bool:
        if not written or any(OBSERVATION in turn for turn in written):
            return False
        # Where no string stops a turn, each ends with an end token, else the last one.
        before = written[:-1] if self.stop else map(self.end.strip, written[:-1])
        turns = OBSERVATION.join((*before, self.end.strip(written[-1])))
        forged = any(token in turns for token in special_tokens(self.tokenizer).values())
        return not forged and self.obeys_grammar(turns)


@dataclass(frozen=True)
class OneToolDialect(BaseDialect):
    """A dialect with one tool, whose name its tags replace."""

    tool: ClassVar[str]
    frame: ClassVar[tuple[str, str]]  # around an observation

    def prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[int]:
        """Encode the prompt. The instruction describes the tool; `tools` may hold that one."""
        for tool in tools:
            if tool["function"]["name"] != self.tool:
                raise UserError(
                    f"The dialect {self.name} can only call `{self.tool}`, not "
                    f"`{tool['function']['name']}`; use the dialect hermes for other tools."
                )
        return super().prompt(question, [])

    def observation_frame(self, place: Place = ALONE) -> tuple[str, str]:
        return self.frame


@dataclass(frozen=True)
class SearchDialect(OneToolDialect):
    """A dialect with the tool `search(query)`."""

    tool = "search"
    call_tags: ClassVar[tuple[str, str]]

    def write_action(self, action: Action) -> str:
        if action.tool != "search" or action.arguments.keys() != {"query"}:
            raise UserError(f"The dialect {self.name} can only write search(query), not {action}.")
        opening, closing = self.call_tags
        return f"{opening} {str(action.arguments['query']).strip()} {closing}"

    def read_call(self, text: str) -> Calls | None:
        """Read the first call that is closed in `text`. What follows it is ignored: the last
        sampled token may hold more characters than the stop string needs."""
        opening, closing = self.call_tags
        head, closed, _ = text.partition(closing)
        if not closed:
            return None
        _, opened, query = head.rpartition(opening)
        if not opened or not query.strip():
            reason = f"Nothing to search for: write {opening} query {closing}."
            return (Malformed(reason, "search"),)
        return (Action("search", {"query": query.strip()}),)
