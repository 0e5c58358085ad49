"""AutoCoA's training files (its data/README.md): reader of pairs, writers of all files.

Demonstrations are JSON lines {"messages": [user, assistant]}, where the assistant's text starts
after the `<think>` that the chat template writes; `published_trajectories.py` reads them.
Pairs are a JSON array of {"conversation": [human], "chosen": gpt, "rejected": gpt}, where the
human's value is the prompt, `<think>` and the shared prefix of both sides.

The records also get the fields of a FlashRAG question, which the authors' code ignores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from fieldcraft.data.file_formats import FileFormat
from fieldcraft.data.prompts import strip_shared_instruction
from fieldcraft.data.record_files import write_json_array
from fieldcraft.data.records import Record, RecordError, read_records, require_few_rejected
from fieldcraft.data.steps_io import ContrastivePair
from fieldcraft.extensions.formats.published_trajectories import (
    AUTOCOA,
    make_task,
    parse_tagged_steps,
)
from fieldcraft.extensions.methods.autocoa import CALL_TAGS, INSTRUCTION, AutoCoADialect
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.types import Answer, DemoStep, Observation, Task, Thought, ToolCall, UserError


class AutoCoAPairs(FileFormat):
    """Format of AutoCoA's pairs."""

    def read_pairs(
        self, path: Path, first: Record, max_left_out: float
    ) -> tuple[list[ContrastivePair], Counter[str]] | None:
        if "conversation" not in first:
            return None
        pairs, reasons = read_pairs(path)
        total, example = len(pairs) + reasons.total(), next(iter(reasons), "")
        require_few_rejected(path, total, reasons, max_left_out, example)
        return pairs, reasons


# -- demonstrations ----------------------------------------------------------------------------


def write_demonstrations(
    demonstrations: Iterable[tuple[Task, Sequence[DemoStep]]],
    path: Path,
    instruction: str = INSTRUCTION,
) -> Counter[str]:
    """Write demonstrations as `messages`, atomically; return the counts of reasons to leave some
    out.

    Args:
        demonstrations: questions and the steps that answer them.
        path: output file, JSON lines.
        instruction: text before each question.
    """
    lines, reasons = convert_demonstrations(demonstrations, instruction)
    write_json_lines(path, lines)
    return reasons


def convert_demonstrations(
    demonstrations: Iterable[tuple[Task, Sequence[DemoStep]]], instruction: str = INSTRUCTION
) -> tuple[list[Record], Counter[str]]:
    """Return demonstrations as records with `messages`, and the counts of reasons to leave some
    out."""
    lines: list[Record] = []
    reasons = Counter[str]()
    for task, steps in demonstrations:
        try:
            text = _render_steps(steps)
        except RecordError as error:
            reasons[str(error)] += 1
            continue
        messages = [
            {"role": "user", "content": _render_prompt(task, instruction)},
            {"role": "assistant", "content": text},
        ]
        lines.append({"messages": messages, **_question_fields(task)})
    return lines, reasons


# -- pairs -------------------------------------------------------------------------------------


def read_pairs(path: Path) -> tuple[list[ContrastivePair], Counter[str]]:
    """Return the pairs of steps, and counts of reasons for which others were left out.

    Only the first step of each side is used: up to its first query, or to its answer.

    Raises:
        UserError: the file is missing or damaged, or of another format.
    """
    entries = list(read_records(path))
    reasons = Counter(str(each) for _, each in entries if isinstance(each, RecordError))
    readable = [(location, each) for location, each in entries if not isinstance(each, RecordError)]
    found = [(location, record, *_split_pair(record, location)) for location, record in readable]
    questions = strip_shared_instruction(
        [prefix.rpartition("<think>")[0] for _, _, prefix, _, _ in found]
    )
    pairs: list[ContrastivePair] = []
    for (location, record, prefix, *sides), question in zip(found, questions, strict=True):
        try:
            before = _parse_open_steps(prefix.rpartition("<think>")[2])
            chosen, rejected = map(_parse_first_step, sides)
        except RecordError as error:
            reasons[str(error)] += 1
            continue
        if before and isinstance(before[-1], ToolCall | Answer):
            reasons["an action or an answer right before the pair"] += 1
        elif chosen == rejected:
            reasons["both sides are the same"] += 1
        else:
            pairs.append(
                ContrastivePair(make_task(record, question, location), before, chosen, rejected)
            )
    return pairs, reasons


def write_pairs(
    pairs: Iterable[ContrastivePair], path: Path, instruction: str = INSTRUCTION
) -> Counter[str]:
    """Write pairs atomically; return the counts of reasons to leave some out."""
    array: list[Record] = []
    reasons = Counter[str]()
    for pair in pairs:
        try:
            before, chosen, rejected = map(_render_steps, (pair.before, pair.chosen, pair.rejected))
        except RecordError as error:
            reasons[str(error)] += 1
            continue
        if "<think>" in before:  # the authors' code splits at the last one
            reasons["text with a tag"] += 1
            continue
        prefix = f"{_render_prompt(pair.task, instruction)}\n\n<think>{before}"
        array.append(
            {
                "conversation": [{"from": "human", "value": prefix}],
                "chosen": {"from": "gpt", "value": _separator(pair.before, pair.chosen) + chosen},
                "rejected": {
                    "from": "gpt",
                    "value": _separator(pair.before, pair.rejected) + rejected,
                },
                **_question_fields(pair.task),
            }
        )
    write_json_array(path, array)
    return reasons


def _split_pair(record: Record, location: str) -> tuple[str, str, str]:
    """Return (prompt and shared text, chosen, rejected)."""
    match record:
        case {
            "conversation": [*_, {"from": "human", "value": str(prefix)}],
            "chosen": {"value": str(chosen)},
            "rejected": {"value": str(rejected)},
        } if "<think>" in prefix:
            return prefix, chosen, rejected
    raise UserError(
        f"{location}: this is not an AutoCoA pair; it needs 'conversation', whose last value"
        " contains '<think>', 'chosen' and 'rejected'."
    )


def _parse_open_steps(text: str) -> tuple[DemoStep, ...]:
    steps, rest = parse_tagged_steps(text, AUTOCOA)
    return (*steps, Thought(rest)) if rest else tuple(steps)


def _parse_first_step(text: str) -> tuple[DemoStep, ...]:
    steps = _parse_open_steps(text)
    if not steps:
        raise RecordError("an empty side")
    first = next((i for i, step in enumerate(steps, start=1) if isinstance(step, ToolCall)), None)
    return steps[:first]


def _separator(before: Sequence[DemoStep], side: Sequence[DemoStep]) -> str:
    """Return the white space between an unfinished thought and its continuation."""
    if not _ends_with_thought(before):
        return ""
    return " " if isinstance(side[0], Thought) else "\n"


# -- text --------------------------------------------------------------------------------------


def _render_prompt(task: Task, instruction: str) -> str:
    return f"{instruction}\n\n{task.question}" if instruction else task.question


def _question_fields(task: Task) -> Record:
    return {"id": task.id, "question": task.question, "golden_answers": list(task.answers)}


def _render_steps(steps: Sequence[DemoStep]) -> str:
    """Return the text of the steps. Raises RecordError if it does not parse back to them."""
    normalised = _normalise_steps(steps)
    if any(
        isinstance(step, ToolCall) and step.arguments.keys() != {"query"} for step in normalised
    ):
        raise RecordError("another tool than search")
    text = "".join(map(_render_step, normalised)).removesuffix(
        "\n" if _ends_with_thought(normalised) else ""
    )
    try:
        if _parse_open_steps(text) == normalised:
            return text
    except RecordError:
        pass
    raise RecordError("text with a tag")


def _render_step(step: DemoStep) -> str:
    match step:
        case Thought(text):
            return f"{text}\n"
        case ToolCall(_, arguments):
            return f" {arguments['query']} ".join((CALL_TAGS.opening, CALL_TAGS.closing))
        case Observation(text):
            return f"{AutoCoADialect.observation_padding}{text}".join(AutoCoADialect.delimiters)
        case Answer(text):
            return f"</think>\n\n\\boxed{{{text}}}"


def _ends_with_thought(steps: Sequence[DemoStep]) -> bool:
    return bool(steps) and isinstance(steps[-1], Thought)


def _normalise_steps(steps: Sequence[DemoStep]) -> tuple[DemoStep, ...]:
    """Return the steps with stripped texts and with adjacent thoughts joined."""
    found: list[DemoStep] = []
    for kind, group in groupby(steps, key=type):
        if kind is Thought:
            text = "\n\n".join(t for s in group if isinstance(s, Thought) and (t := s.text.strip()))
            found += [Thought(text)] if text else []
        else:
            found += [_strip_step(step) for step in group]
    return tuple(found)


def _strip_step(step: DemoStep) -> DemoStep:
    match step:
        case Observation(text):
            return Observation(text.strip())
        case Answer(text):
            return Answer(text.strip())
        case ToolCall(tool, arguments) if isinstance(query := arguments.get("query"), str):
            return ToolCall(tool, arguments | {"query": query.strip()})
    return step
