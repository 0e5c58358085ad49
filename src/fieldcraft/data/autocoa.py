"""AutoCoA's training files (its data/README.md): contrastive pairs read, all of them written.

Demonstrations are JSON lines {"messages": [user, assistant]}, where the assistant's text begins
behind the `<think>` that the chat template writes; `trajectories.read_trajectories` reads them.
Pairs are a JSON array of {"conversation": [human], "chosen": gpt, "rejected": gpt}, where the
human's value is the prompt, `<think>` and the text that both sides go on from.

The records also get the fields of a FlashRAG question, which the authors' code passes over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from fieldcraft.data.prompts import asked
from fieldcraft.data.records import Malformed, Record, records, write_array
from fieldcraft.data.steps_io import StepPair
from fieldcraft.data.trajectories import AUTOCOA, read_steps, task_of
from fieldcraft.dialects.autocoa import INSTRUCTION, AutoCoA
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.types import Action, Answer, Observation, Step, Task, Thought, UserError

# -- demonstrations ----------------------------------------------------------------------------


def write_demonstrations(
    shown: Iterable[tuple[Task, Sequence[Step]]], path: Path, instruction: str = INSTRUCTION
) -> Counter[str]:
    """Write demonstrations as `messages`, whole or not at all; returns why some were left out.

    Args:
        shown: questions and the steps that answer them.
        path: the file, JSON lines.
        instruction: stands before every question.
    """
    lines: list[Record] = []
    reasons = Counter[str]()
    for task, steps in shown:
        try:
            written = _written(steps)
        except Malformed as error:
            reasons[str(error)] += 1
            continue
        messages = [
            {"role": "user", "content": _prompt(task, instruction)},
            {"role": "assistant", "content": written},
        ]
        lines.append({"messages": messages, **_question(task)})
    write_json_lines(path, lines)
    return reasons


# -- pairs -------------------------------------------------------------------------------------


def read_pairs(path: Path) -> tuple[list[StepPair], Counter[str]]:
    """Return the pairs of steps, and why others of the file were left out.

    Only the first step of a side is taken: up to its first query, or to its answer.

    Raises:
        UserError: the file is missing or damaged, or of another format.
    """
    given = list(records(path))
    reasons = Counter(str(each) for _, each in given if isinstance(each, Malformed))
    readable = [(where, each) for where, each in given if not isinstance(each, Malformed)]
    found = [(where, record, *_values(record, where)) for where, record in readable]
    questions = asked([begun.rpartition("<think>")[0] for _, _, begun, _, _ in found])
    pairs: list[StepPair] = []
    for (where, record, begun, *sides), question in zip(found, questions, strict=True):
        try:
            before = _open_ended(begun.rpartition("<think>")[2])
            chosen, rejected = map(_first_step, sides)
        except Malformed as error:
            reasons[str(error)] += 1
            continue
        if before and isinstance(before[-1], Action | Answer):
            reasons["an action or an answer right before the pair"] += 1
        elif chosen == rejected:
            reasons["both sides are the same"] += 1
        else:
            pairs.append(StepPair(task_of(record, question, where), before, chosen, rejected))
    return pairs, reasons


def write_pairs(
    pairs: Iterable[StepPair], path: Path, instruction: str = INSTRUCTION
) -> Counter[str]:
    """Write pairs, whole or not at all; returns why some were left out."""
    array: list[Record] = []
    reasons = Counter[str]()
    for pair in pairs:
        try:
            before, chosen, rejected = map(_written, (pair.before, pair.chosen, pair.rejected))
        except Malformed as error:
            reasons[str(error)] += 1
            continue
        if "<think>" in before:  # the authors' code looks for the last one
            reasons["text with a tag"] += 1
            continue
        begun = f"{_prompt(pair.task, instruction)}\n\n<think>{before}"
        array.append(
            {
                "conversation": [{"from": "human", "value": begun}],
                "chosen": {"from": "gpt", "value": _gap(pair.before, pair.chosen) + chosen},
                "rejected": {"from": "gpt", "value": _gap(pair.before, pair.rejected) + rejected},
                **_question(pair.task),
            }
        )
    write_array(path, array)
    return reasons


def _values(record: Record, where: str) -> tuple[str, str, str]:
    """Return (prompt and shared text, chosen, rejected)."""
    match record:
        case {
            "conversation": [*_, {"from": "human", "value": str(begun)}],
            "chosen": {"value": str(chosen)},
            "rejected": {"value": str(rejected)},
        } if "<think>" in begun:
            return begun, chosen, rejected
    raise UserError(
        f"{where}: this is no pair of AutoCoA; it needs 'conversation', whose last value holds "
        "'<think>', 'chosen' and 'rejected'."
    )


def _open_ended(text: str) -> tuple[Step, ...]:
    steps, rest = read_steps(text, AUTOCOA)
    return (*steps, Thought(rest)) if rest else tuple(steps)


def _first_step(text: str) -> tuple[Step, ...]:
    steps = _open_ended(text)
    if not steps:
        raise Malformed("an empty side")
    first = next((i for i, step in enumerate(steps, start=1) if isinstance(step, Action)), None)
    return steps[:first]


def _gap(before: Sequence[Step], side: Sequence[Step]) -> str:
    """Return the white space between a thought that is not finished and how it goes on."""
    if not _ends_open(before):
        return ""
    return " " if isinstance(side[0], Thought) else "\n"


# -- text --------------------------------------------------------------------------------------


def _prompt(task: Task, instruction: str) -> str:
    return f"{instruction}\n\n{task.question}" if instruction else task.question


def _question(task: Task) -> Record:
    return {"id": task.id, "question": task.question, "golden_answers": list(task.answers)}


def _written(steps: Sequence[Step]) -> str:
    """Return the text of some steps. Raises Malformed if it could not be read back."""
    whole = _normal(steps)
    if any(isinstance(step, Action) and step.arguments.keys() != {"query"} for step in whole):
        raise Malformed("another tool than search")
    text = "".join(map(_write, whole)).removesuffix("\n" if _ends_open(whole) else "")
    try:
        if _open_ended(text) == whole:
            return text
    except Malformed:
        pass
    raise Malformed("text with a tag")


def _write(step: Step) -> str:
    match step:
        case Thought(text):
            return f"{text}\n"
        case Action(_, arguments):
            return f" {arguments['query']} ".join(AutoCoA.call_tags)
        case Observation(text):
            return f"{AutoCoA.padding}{text}".join(AutoCoA.frame)
        case Answer(text):
            return f"</think>\n\n\\boxed{{{text}}}"


def _ends_open(steps: Sequence[Step]) -> bool:
    return bool(steps) and isinstance(steps[-1], Thought)


def _normal(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps without white space around their text, neighbouring thoughts joined."""
    found: list[Step] = []
    for kind, group in groupby(steps, key=type):
        if kind is Thought:
            text = "\n\n".join(t for s in group if isinstance(s, Thought) and (t := s.text.strip()))
            found += [Thought(text)] if text else []
        else:
            found += [_bare(step) for step in group]
    return tuple(found)


def _bare(step: Step) -> Step:
    match step:
        case Observation(text):
            return Observation(text.strip())
        case Answer(text):
            return Answer(text.strip())
        case Action(tool, arguments) if isinstance(query := arguments.get("query"), str):
            return Action(tool, arguments | {"query": query.strip()})
    return step
