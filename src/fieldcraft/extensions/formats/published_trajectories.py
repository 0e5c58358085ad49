"""Readers of published trajectories: R1-Searcher, Search-R1, AutoCoA."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from fieldcraft.data.file_formats import FileFormat, TaskAndSteps
from fieldcraft.data.gold_answers import parse_answers
from fieldcraft.data.passages import Passage, format_passages
from fieldcraft.data.prompts import strip_shared_instruction
from fieldcraft.data.records import (
    Record,
    RecordError,
    make_question_id,
    read_records,
    read_valid_records,
    require_few_rejected,
)
from fieldcraft.dialects.marked_answers import find_last_boxed
from fieldcraft.extensions.methods.autocoa import AutoCoADialect
from fieldcraft.types import Answer, DemoStep, Observation, Task, Thought, ToolCall, UserError

T = TypeVar("T")


class PublishedTrajectories(FileFormat):
    """Formats of published trajectories."""

    def read_demonstrations(
        self, path: Path, first: Record, max_left_out: float
    ) -> tuple[list[TaskAndSteps], Counter[str]] | None:
        if path.suffix != ".txt" and first.keys().isdisjoint(("messages", "gen_text_store")):
            return None
        demonstrations, reasons = read_trajectories(path)
        total, example = len(demonstrations) + reasons.total(), next(iter(reasons), "")
        require_few_rejected(path, total, reasons, max_left_out, example)
        return demonstrations, reasons


def read_trajectories(path: Path) -> tuple[list[TaskAndSteps], Counter[str]]:
    """Read published trajectories as demonstrations, with counts of reasons for those left out.

    A `.txt` file holds Search-R1 transcripts; any other file holds records: AutoCoA's with
    `messages`, or R1-Searcher's, where `Task.meta["judged_correct"]` is the judge's
    verdict. If gold answers are unknown, `answers` is empty; wrong answers are included.
    Observations are formatted as by the search tool.

    Raises:
        UserError: the file is missing or damaged, or of another format.
    """
    read = _read_search_r1 if path.suffix == ".txt" else _read_records
    demonstrations: list[TaskAndSteps] = []
    reasons = Counter[str]()
    for found in read(path):
        try:
            if isinstance(found, RecordError):
                raise found
            task, text, style = found
            demonstrations.append((task, _parse_complete(text, style)))
        except RecordError as error:
            reasons[str(error)] += 1
    return demonstrations, reasons


# -- styles ------------------------------------------------------------------------------------


class TagStyle(NamedTuple):
    """Format of published trajectories: their tags, and the parsers of documents and answers."""

    query_start: str
    query_end: str
    documents_start: str
    documents_end: str
    answer_start: str
    answer_end: str
    parse_observation: Callable[[str], str]
    parse_answer: Callable[[str], Answer]


def _parse_tagged_answer(rest: str) -> Answer:
    answer, tail = _split_before(rest, "</answer>", "an answer is not closed")
    if tail.strip():
        raise RecordError("text after the answer")
    if not answer.strip():
        raise RecordError("an empty answer")
    return Answer(answer.strip())


def _parse_boxed_answer(rest: str) -> Answer:
    if any(tag in rest for tag in AutoCoADialect.tags):
        raise RecordError("a tag after the thinking part")
    answer = find_last_boxed(rest)
    if answer is None:
        raise RecordError("no answer")
    return Answer(answer)


def _format_as_search_results(block: str) -> str:
    return format_passages(_parse_documents(block))


R1_SEARCHER = TagStyle(
    "<|begin_of_query|>",
    "<|end_of_query|>",
    "<|begin_of_documents|>",
    "<|end_of_documents|>",
    "<answer>",
    "</answer>",
    _format_as_search_results,
    _parse_tagged_answer,
)
SEARCH_R1 = R1_SEARCHER._replace(
    query_start="<search>",
    query_end="</search>",
    documents_start="<information>",
    documents_end="</information>",
)
AUTOCOA = TagStyle(
    "<begin_search>",
    "</end_search>",
    "<search_result>",
    "</search_result>",
    "</think>",
    "</think>",
    str.strip,
    _parse_boxed_answer,
)


RawTrajectory = tuple[Task, str, TagStyle]  # a trajectory as published

# -- files -------------------------------------------------------------------------------------

_SEARCH_R1_TURN = re.compile(
    r"Question: ([^\n]*)\n<\|im_end\|>\n<\|im_start\|>assistant\n(.*?)(?=<\|im_start\|>|\Z)",
    re.DOTALL,
)


def _read_records(path: Path) -> Iterator[RawTrajectory | RecordError]:
    _, record = next(read_valid_records(path), ("", {}))
    return _read_autocoa(path) if "messages" in record else _read_each(path, _parse_r1_searcher)


def _read_each(path: Path, read: Callable[[Record, str], T]) -> Iterator[T | RecordError]:
    """Yield the result of `read` for each record. If it fails for the first record, the file has
    another format, and the UserError is raised; later records that fail are left out."""
    is_known_format = False
    for location, found in read_records(path):
        if isinstance(found, RecordError):
            yield found
            continue
        try:
            yield read(found, location)
        except UserError:
            if not is_known_format:
                raise
            yield RecordError("another format than the first record")
        is_known_format = True


def _parse_r1_searcher(record: Record, location: str) -> RawTrajectory:
    text, question = record.get("gen_text_store"), record.get("question")
    if not isinstance(text, str) or not isinstance(question, str):
        raise UserError(
            f"{location}: this is not a trajectory of R1-Searcher, which needs 'question' and "
            "'gen_text_store'."
        )
    verdict = record.get("gpt4o_output")
    meta = {} if verdict is None else {"judged_correct": verdict == "True"}
    task = Task(make_question_id(question), question.strip(), parse_answers(record, location), meta)
    return task, text, R1_SEARCHER


def _read_autocoa(path: Path) -> Iterator[RawTrajectory | RecordError]:
    read = [
        *_read_each(
            path, lambda record, location: (location, record, *_split_messages(record, location))
        )
    ]
    yield from (each for each in read if isinstance(each, RecordError))
    found = [each for each in read if not isinstance(each, RecordError)]
    questions = strip_shared_instruction([prompt for _, _, prompt, _ in found])
    for (location, record, _, text), question in zip(found, questions, strict=True):
        yield make_task(record, question, location), text, AUTOCOA


def is_autocoa(record: Record) -> bool:
    """Return whether a record is AutoCoA's: its `messages` are two, and the text of the second
    starts inside a thought."""
    match record.get("messages"):
        case [*_, {"role": "user"}, {"role": "assistant", "content": str(text)}]:
            starts_in_thought = (
                not text.lstrip().startswith("<think>") and AUTOCOA.answer_start in text
            )
            return AUTOCOA.query_start in text or starts_in_thought
    return False


def _split_messages(record: Record, location: str) -> tuple[str, str]:
    """Return (prompt, text of the assistant)."""
    match record.get("messages"):
        case [
            *_,
            {"role": "user", "content": str(prompt)},
            {"role": "assistant", "content": str(text)},
        ]:
            return prompt, text.strip().removeprefix("<think>")
    raise UserError(
        f"{location}: this is not a trajectory of AutoCoA; its 'messages' are one of the user and"
        " one of the assistant."
    )


def make_task(record: Record, question: str, location: str) -> Task:
    """Return the task of a training record, whose id and gold answers are optional."""
    question = str(record.get("question") or question).strip()
    answers = parse_answers(record, location) if record.get("golden_answers") else ()
    return Task(str(record.get("id") or make_question_id(question)), question, answers)


def _read_search_r1(path: Path) -> Iterator[RawTrajectory | RecordError]:
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a file of Search-R1 transcripts.")
    found = _SEARCH_R1_TURN.findall(path.read_text(encoding="utf-8", errors="replace"))
    if not found:
        raise UserError(f"{path} holds no Search-R1 transcript; give one with '<|im_start|>'.")
    for question, text in found:
        yield Task(make_question_id(question), question.strip(), ()), text, SEARCH_R1


# -- steps -------------------------------------------------------------------------------------


def _parse_complete(text: str, style: TagStyle) -> list[DemoStep]:
    steps, _ = parse_tagged_steps(text, style)
    if not (steps and isinstance(steps[-1], Answer)):
        raise RecordError("no answer")
    return steps


def parse_tagged_steps(text: str, style: TagStyle) -> tuple[list[DemoStep], str]:
    """Return the thoughts, searches, observations and the answer, and the remaining text if there
    is no answer. Tags are parsed from left to right, so a tag inside a document is plain text.

    Raises RecordError with the reason.
    """
    steps: list[DemoStep] = []
    strays = (style.query_end, style.documents_start, style.documents_end, style.answer_end)
    opening = re.compile(f"{re.escape(style.query_start)}|{re.escape(style.answer_start)}")
    while (found := opening.search(text)) is not None:
        thought, rest = text[: found.start()], text[found.end() :]
        if any(stray in thought for stray in strays):
            raise RecordError("a stray tag")
        if thought := re.sub("</?think>", "", thought).strip():
            steps.append(Thought(thought))
        if found.group() == style.answer_start:
            return [*steps, style.parse_answer(rest)], ""
        query, text = _split_before(rest, style.query_end, "a query is not closed")
        if not query.strip():
            raise RecordError("an empty query")
        steps.append(ToolCall("search", {"query": query.strip()}))
        if not text.strip():
            return steps, ""
        between, rest = _split_before(text, style.documents_start, "a query without documents")
        if between.strip():
            raise RecordError("a query without documents")
        documents, text = _split_before(rest, style.documents_end, "documents are not closed")
        steps.append(Observation(style.parse_observation(documents)))
    if any(stray in text for stray in strays):
        raise RecordError("a stray tag")
    return steps, text.strip()


def _split_before(text: str, marker: str, reason: str) -> tuple[str, str]:
    """Return the text before `marker` and the text after it."""
    before, found, after = text.partition(marker)
    if not found:
        raise RecordError(reason)
    return before, after


# The formats of its own index and of the web, as in its evaluation of Bamboogle.
_R1_SEARCHER_DOCUMENT = re.compile(r"(?:Title: (.*?) Text:|([^\n]*?) {3})\s*(.*)", re.DOTALL)
_SEARCH_R1_DOCUMENT = re.compile(
    r'Doc \d+\(Title: "(.*?)"\) (.*?)(?=\nDoc \d+\(Title: |\Z)', re.DOTALL
)


def _parse_documents(block: str) -> list[Passage]:
    """Return the passages of `(1)"Title: ... Text: ..."`, quoted as in CSV, of `(1)TITLE TEXT`, or
    of `Doc 1(Title: "...") ...`."""
    if found := _SEARCH_R1_DOCUMENT.findall(block.strip()):
        return [Passage("", title, text.strip()) for title, text in found]
    passages = []
    for document in re.split(r"^\(\d+\)", block.strip(), flags=re.MULTILINE)[1:]:
        line = document.strip()
        if line.startswith('"') and line.endswith('"'):
            line = line[1:-1].replace('""', '"')
        parts = _R1_SEARCHER_DOCUMENT.fullmatch(line)
        if parts is None:
            raise RecordError("a document without title and text")
        passages.append(Passage("", (parts[1] or parts[2] or "").strip(), parts[3].strip()))
    if not passages:
        raise RecordError("no documents")
    return passages
