"""Trajectories as others publish them: R1-Searcher, Search-R1, AutoCoA, ToolRL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from fieldcraft.data.gold_answers import answers_of
from fieldcraft.data.other_uses import other_use
from fieldcraft.data.prompts import asked
from fieldcraft.data.records import (
    Malformed,
    Record,
    hash_of,
    readable_records,
    records,
    understood,
)
from fieldcraft.data.sources import read_task
from fieldcraft.data.toolrl import is_toolrl, read_turn
from fieldcraft.dialects.autocoa import AutoCoA
from fieldcraft.dialects.boxes import last_box
from fieldcraft.tools.search.passages import Passage, format_passages
from fieldcraft.types import Action, Answer, Observation, Step, Task, Thought, UserError

T = TypeVar("T")


def read_trajectories(path: Path) -> tuple[list[tuple[Task, list[Step]]], Counter[str]]:
    """Read published trajectories as demonstrations, and why others of the file were left out.

    A `.txt` file holds Search-R1 transcripts, any other file records: ToolRL's of one turn,
    AutoCoA's with `messages`, or R1-Searcher's, where `Task.meta["judged_correct"]` is the judge's
    verdict. Where gold answers are not known, `answers` is empty; wrong answers are kept.
    Observations are laid out as the search tool does it.

    Raises:
        UserError: the file is missing or damaged, or of another format.
    """
    if path.suffix != ".txt" and is_toolrl(path):
        return _toolrl(path)
    read = _search_r1 if path.suffix == ".txt" else _records_of_either
    demonstrations: list[tuple[Task, list[Step]]] = []
    reasons = Counter[str]()
    for found in read(path):
        try:
            if isinstance(found, Malformed):
                raise found
            task, written, style = found
            demonstrations.append((task, _whole(written, style)))
        except Malformed as error:
            reasons[str(error)] += 1
    return demonstrations, reasons


def _toolrl(path: Path) -> tuple[list[tuple[Task, list[Step]]], Counter[str]]:
    demonstrations: list[tuple[Task, list[Step]]] = []
    reasons = Counter[str]()
    for _, found in records(path):
        try:
            record = understood(found)
            turn = read_turn(record)
            demonstrations.append((read_task(record), turn))
        except Malformed as error:
            reasons[str(error)] += 1
    return demonstrations, reasons


# -- styles ------------------------------------------------------------------------------------


class Style(NamedTuple):
    """Form in which somebody writes trajectories: tags, and what documents and the answer look
    like."""

    query_opens: str
    query_ends: str
    documents_open: str
    documents_end: str
    answer_opens: str
    answer_ends: str
    observation: Callable[[str], str]
    answer: Callable[[str], Answer]


def _tagged_answer(rest: str) -> Answer:
    answer, tail = _until(rest, "</answer>", "an answer is not closed")
    if tail.strip():
        raise Malformed("text after the answer")
    if not answer.strip():
        raise Malformed("an empty answer")
    return Answer(answer.strip())


def _boxed_answer(rest: str) -> Answer:
    if any(tag in rest for tag in AutoCoA.tags):
        raise Malformed("a tag after the thinking part")
    answer = last_box(rest)
    if answer is None:
        raise Malformed("no answer")
    return Answer(answer)


def _as_the_tool_does(block: str) -> str:
    return format_passages(_documents(block))


R1_SEARCHER = Style(
    "<|begin_of_query|>",
    "<|end_of_query|>",
    "<|begin_of_documents|>",
    "<|end_of_documents|>",
    "<answer>",
    "</answer>",
    _as_the_tool_does,
    _tagged_answer,
)
SEARCH_R1 = R1_SEARCHER._replace(
    query_opens="<search>",
    query_ends="</search>",
    documents_open="<information>",
    documents_end="</information>",
)
AUTOCOA = Style(
    "<begin_search>",
    "</end_search>",
    "<search_result>",
    "</search_result>",
    "</think>",
    "</think>",
    str.strip,
    _boxed_answer,
)


Written = tuple[Task, str, Style]  # a trajectory, as somebody wrote it

# -- files -------------------------------------------------------------------------------------

_SEARCH_R1_TURN = re.compile(
    r"Question: ([^\n]*)\n<\|im_end\|>\n<\|im_start\|>assistant\n(.*?)(?=<\|im_start\|>|\Z)",
    re.DOTALL,
)


def _records_of_either(path: Path) -> Iterator[Written | Malformed]:
    _, record = next(readable_records(path), ("", {}))
    return _autocoa(path) if "messages" in record else _each(path, _r1_searcher)


def _each(path: Path, read: Callable[[Record, str], T]) -> Iterator[T | Malformed]:
    """Yield what is read of each record. If that is impossible for the first one, the file is of
    another format, which is the UserError of `read`; any other is left out."""
    known = False
    for where, found in records(path):
        if isinstance(found, Malformed):
            yield found
            continue
        try:
            yield read(found, where)
        except UserError:
            if not known:
                raise
            yield Malformed("another form than the first record has")
        known = True


def _r1_searcher(record: Record, where: str) -> Written:
    written, question = record.get("gen_text_store"), record.get("question")
    if not isinstance(written, str) or not isinstance(question, str):
        if use := other_use(record, "demonstrations"):
            raise UserError(f"{where} holds no demonstration, but {use}.")
        raise UserError(
            f"{where}: this is no trajectory of R1-Searcher, which needs 'question' and "
            "'gen_text_store', or of AutoCoA, which needs 'messages'."
        )
    verdict = record.get("gpt4o_output")
    meta = {} if verdict is None else {"judged_correct": verdict == "True"}
    task = Task(hash_of(question), question.strip(), answers_of(record, where), meta)
    return task, written, R1_SEARCHER


def _autocoa(path: Path) -> Iterator[Written | Malformed]:
    read = [*_each(path, lambda record, where: (where, record, *_messages(record, where)))]
    yield from (each for each in read if isinstance(each, Malformed))
    found = [each for each in read if not isinstance(each, Malformed)]
    questions = asked([prompt for _, _, prompt, _ in found])
    for (where, record, _, written), question in zip(found, questions, strict=True):
        yield task_of(record, question, where), written, AUTOCOA


def _messages(record: Record, where: str) -> tuple[str, str]:
    """Return (prompt, what the assistant wrote)."""
    match record.get("messages"):
        case [
            *_,
            {"role": "user", "content": str(prompt)},
            {"role": "assistant", "content": str(written)},
        ]:
            return prompt, written.strip().removeprefix("<think>")
    raise UserError(
        f"{where}: this is no trajectory of AutoCoA; its 'messages' are one of the user and one of "
        "the assistant."
    )


def task_of(record: Record, question: str, where: str) -> Task:
    """Return the task of a record of training data, which need not say its id or gold answers."""
    question = str(record.get("question") or question).strip()
    answers = answers_of(record, where) if record.get("golden_answers") else ()
    return Task(str(record.get("id") or hash_of(question)), question, answers)


def _search_r1(path: Path) -> Iterator[Written | Malformed]:
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a file of Search-R1 transcripts.")
    found = _SEARCH_R1_TURN.findall(path.read_text(encoding="utf-8", errors="replace"))
    if not found:
        raise UserError(f"{path} holds no Search-R1 transcript; give one with '<|im_start|>'.")
    for question, written in found:
        yield Task(hash_of(question), question.strip(), ()), written, SEARCH_R1


# -- steps -------------------------------------------------------------------------------------


def _whole(written: str, style: Style) -> list[Step]:
    steps, _ = read_steps(written, style)
    if not (steps and isinstance(steps[-1], Answer)):
        raise Malformed("no answer")
    return steps


def read_steps(written: str, style: Style) -> tuple[list[Step], str]:
    """Return the thoughts, searches, observations and the answer, and the text after them if there
    is no answer. Tags are read from left to right, so that one inside a document is only text.

    Raises Malformed, which says why.
    """
    steps: list[Step] = []
    strays = (style.query_ends, style.documents_open, style.documents_end, style.answer_ends)
    opening = re.compile(f"{re.escape(style.query_opens)}|{re.escape(style.answer_opens)}")
    while (found := opening.search(written)) is not None:
        thought, rest = written[: found.start()], written[found.end() :]
        if any(stray in thought for stray in strays):
            raise Malformed("a stray tag")
        if thought := re.sub("</?think>", "", thought).strip():
            steps.append(Thought(thought))
        if found.group() == style.answer_opens:
            return [*steps, style.answer(rest)], ""
        query, written = _until(rest, style.query_ends, "a query is not closed")
        if not query.strip():
            raise Malformed("an empty query")
        steps.append(Action("search", {"query": query.strip()}))
        if not written.strip():
            return steps, ""
        between, rest = _until(written, style.documents_open, "a query without documents")
        if between.strip():
            raise Malformed("a query without documents")
        documents, written = _until(rest, style.documents_end, "documents are not closed")
        steps.append(Observation(style.observation(documents)))
    if any(stray in written for stray in strays):
        raise Malformed("a stray tag")
    return steps, written.strip()


def _until(text: str, end: str, otherwise: str) -> tuple[str, str]:
    """Return the text before `end` and the text after it."""
    before, found, after = text.partition(end)
    if not found:
        raise Malformed(otherwise)
    return before, after


# Of its own index, or of the web, as its evaluation of Bamboogle has them.
_R1_SEARCHER_DOCUMENT = re.compile(r"(?:Title: (.*?) Text:|([^\n]*?) {3})\s*(.*)", re.DOTALL)
_SEARCH_R1_DOCUMENT = re.compile(
    r'Doc \d+\(Title: "(.*?)"\) (.*?)(?=\nDoc \d+\(Title: |\Z)', re.DOTALL
)


def _documents(block: str) -> list[Passage]:
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
            raise Malformed("a document without title and text")
        passages.append(Passage("", (parts[1] or parts[2] or "").strip(), parts[3].strip()))
    if not passages:
        raise Malformed("no documents")
    return passages
