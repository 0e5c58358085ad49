"""Questions, corpora and trajectories as others publish them, read into the project's own types.

Tasks come from FlashRAG and HotpotQA files (JSON lines or a JSON array) and from verl's parquet;
corpora from JSON lines, arrays of passages, HotpotQA's and MuSiQue's paragraphs; trajectories from
R1-Searcher and Search-R1.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet

from fieldcraft.jsonl import read_json_lines
from fieldcraft.tools.passages import Passage, format_passages, parse_passage
from fieldcraft.types import Action, Answer, Observation, Step, Task, Thought, UserError

Record = dict[str, Any]

_QUESTION = ("question", "Question", "problem")
_ANSWERS = ("golden_answers", "answers", "answer", "Answer")
_ID = ("id", "_id", "unique_id")
_META = ("level", "type", "data_source", "difficulty")
_SEPARATOR = re.compile(r"<ans_split>|<\|answer_split\|>")


# -- records -----------------------------------------------------------------------------------


def _records(path: Path) -> Iterator[tuple[str, Record]]:
    """(where it stands, object) for each record of a file in any of the formats."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a .jsonl, .json or .parquet file.")
    if path.suffix == ".parquet":
        for number, row in enumerate(_parquet_rows(path), start=1):
            yield f"{path}, row {number}", row
    elif _is_array(path):
        for number, record in enumerate(_array(path), start=1):
            if not isinstance(record, dict):
                raise UserError(f"{path}, element {number} is not an object; mend or remove it.")
            yield f"{path}, element {number}", record
    else:
        for number, record in read_json_lines(path):
            yield f"{path}, line {number}", record


def _parquet_rows(path: Path) -> list[Record]:
    try:
        rows: list[Record] = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path} is not a parquet file ({error}); give another.") from error
    return rows


def _is_array(path: Path) -> bool:
    if path.suffix != ".json":
        return False
    with path.open("rb") as file:
        return file.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def _array(path: Path) -> list[Any]:
    try:
        array: list[Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); mend the file.") from error
    return array


def _first(record: Record, keys: Sequence[str]) -> Any:
    """The value of the first key that the record fills, None without any."""
    return next((record[key] for key in keys if record.get(key) not in (None, "", [])), None)


# -- tasks -------------------------------------------------------------------------------------


def read_tasks(path: Path) -> list[Task]:
    """Tasks of a .jsonl(.gz), .json or .parquet file, in the file's order.

    A record holds its question in `question` or in verl's `prompt`, and its answers in
    `golden_answers`, `answers`, `answer` or verl's `reward_model.ground_truth`. `level`, `type` and
    what stands in `metadata` go to `Task.meta`. An id is the record's own or a hash of the
    question; when one comes again, "#2", "#3", ... are added.

    verl's prompts repeat the instruction of the framework they were made for; what all prompts of a
    file share, up to its last colon, is cut off.

    Raises:
        UserError: the file is missing, empty or damaged, or a record lacks a question or an answer.
    """
    records = list(_records(path))
    if not records:
        raise UserError(f"{path} holds no questions; give a file with some.")
    instruction = _instruction([_prompt(r) for _, r in records if _first(r, _QUESTION) is None])
    tasks, seen = [], Counter[str]()
    for where, record in records:
        question = _first(record, _QUESTION) or _prompt(record).removeprefix(instruction)
        if not isinstance(question, str) or not question.strip():
            raise UserError(f"{where}: there is no question; add a field 'question'.")
        answers = _answers(record, where)
        identity = _identity(record, question)
        seen[identity] += 1
        if seen[identity] > 1:
            identity = f"{identity}#{seen[identity]}"
        tasks.append(Task(identity, question.strip(), answers, _meta(record)))
    return tasks


def write_tasks(tasks: Iterable[Task], path: Path) -> None:
    """Write tasks in FlashRAG's format; `read_tasks` gives them back as they were."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_lines(
        path,
        (
            {
                "id": task.id,
                "question": task.question,
                "golden_answers": list(task.answers),
                "metadata": task.meta,
            }
            for task in tasks
        ),
    )


def _write_lines(path: Path, records: Iterable[Record]) -> None:
    """JSON lines that are either whole or not there."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8", errors="replace", newline="\n") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    os.replace(partial, path)


def _prompt(record: Record) -> str:
    """The user's last message of a verl prompt, "" where there is none."""
    messages = record.get("prompt")
    if not isinstance(messages, list):
        return ""
    asked = [m for m in messages if isinstance(m, dict) and m.get("role") == "user"]
    content = asked[-1].get("content") if asked else None
    return content if isinstance(content, str) else ""


def _instruction(prompts: list[str]) -> str:
    """What all prompts start with, up to the last colon and the white space after it."""
    if len(set(prompts)) < 2:
        return ""
    first, last = min(prompts), max(prompts)  # what these two share, all between them share
    pairs = zip(first, last, strict=False)
    length = next((i for i, (a, b) in enumerate(pairs) if a != b), len(first))
    found = re.match(r".*:\s+", first[:length], re.DOTALL)
    return found.group() if found else ""


def _answers(record: Record, where: str) -> tuple[str, ...]:
    """All accepted answers, each once, in order."""
    given = _first(record, _ANSWERS)
    if given is None and isinstance(reward := record.get("reward_model"), dict):
        given = reward.get("ground_truth")
        if isinstance(given, dict):  # Search-R1's {"target": [...]}
            given = given.get("target")
        if isinstance(given, str):
            given = _SEPARATOR.split(given)
    if isinstance(given, str):  # GSM8K writes the whole solution, the answer behind "####"
        given = given.rpartition("\n#### ")[2]
    listed = given if isinstance(given, list) else [given]
    aliases = record.get("answer_aliases")
    listed = listed + (aliases if isinstance(aliases, list) else [])
    if wrong := [a for a in listed if not isinstance(a, str | int | float | None)]:
        raise UserError(f"{where}: the answer {wrong[0]!r} is no text; write a list of strings.")
    # A bare NaN, as some public files hold, is a missing value and unequal to itself.
    texts = (str(answer).strip() for answer in listed if answer is not None and answer == answer)
    answers = tuple(dict.fromkeys(text for text in texts if text))
    if not answers:
        raise UserError(f"{where}: the question has no answer; add a field 'golden_answers'.")
    return answers


def _identity(record: Record, question: str) -> str:
    given = _first(record, _ID)
    extra = record.get("extra_info")
    if given is None and isinstance(extra, dict):
        given = extra.get("index")
    return _hash(question) if given is None else str(given)


def _hash(question: str) -> str:
    return hashlib.sha1(question.strip().encode(errors="replace")).hexdigest()[:16]


def _meta(record: Record) -> dict[str, Any]:
    meta = {key: record[key] for key in _META if isinstance(record.get(key), str | int | float)}
    own = record.get("metadata")
    return meta | own if isinstance(own, dict) else meta


# -- corpora -----------------------------------------------------------------------------------


def ensure_corpus(path: Path, out: Path) -> Path:
    """A corpus that `build_index` takes: `path` itself if it is one, else `out`, written from it.

    Besides JSON lines of passages, `path` may be a JSON array of passages, or a HotpotQA or MuSiQue
    file, whose paragraphs become the corpus.

    Raises:
        UserError: the file is missing, empty or damaged, or holds no passages.
    """
    _, record = next(_records(path), ("", {}))
    if ("contents" in record or "text" in record) and path.suffix in (".jsonl", ".gz"):
        return path
    passages = dict.fromkeys(_paragraphs(path))
    if not passages:
        raise UserError(f"{path} holds no passages; give a corpus or a HotpotQA file.")
    out.parent.mkdir(parents=True, exist_ok=True)
    _write_lines(
        out,
        ({"id": str(i), "title": t, "text": text} for i, (t, text) in enumerate(passages)),
    )
    return out


def _paragraphs(path: Path) -> Iterator[tuple[str, str]]:
    """(title, text) of every paragraph, repetitions included."""
    for where, record in _records(path):
        try:
            if "context" in record:  # HotpotQA: [title, [sentence, ...]]
                for title, sentences in record["context"]:
                    yield str(title), "".join(sentences)
            elif "paragraphs" in record:  # MuSiQue
                for paragraph in record["paragraphs"]:
                    yield str(paragraph["title"]), str(paragraph["paragraph_text"])
            else:
                passage = parse_passage(record, "")
                yield passage.title, passage.text
        except (TypeError, ValueError, KeyError) as error:
            raise UserError(
                f"{where} holds no passages as a corpus, HotpotQA or MuSiQue write them ({error}); "
                "give another file or mend the record."
            ) from error


# -- trajectories ------------------------------------------------------------------------------


class _Malformed(Exception):
    """Why a trajectory is left out."""


def read_trajectories(path: Path) -> tuple[list[tuple[Task, list[Step]]], Counter[str]]:
    """Published search trajectories as demonstrations, and why others of the file were left out.

    A `.txt` file holds Search-R1 transcripts, whose gold answers are not known (`answers` is
    empty); any other file JSON lines of R1-Searcher, where `Task.meta["judged_correct"]` is the
    judge's verdict. Wrong answers are kept. Observations are laid out as the search tool does it.

    Raises:
        UserError: the file is missing or damaged, or of another format.
    """
    read = _search_r1 if path.suffix == ".txt" else _r1_searcher
    demonstrations: list[tuple[Task, list[Step]]] = []
    reasons = Counter[str]()
    for task, written, tags in read(path):
        try:
            demonstrations.append((task, _steps(written, tags)))
        except _Malformed as error:
            reasons[str(error)] += 1
    return demonstrations, reasons


class _Tags(NamedTuple):
    query_opens: str
    query_ends: str
    documents_open: str
    documents_end: str


_R1_SEARCHER = _Tags(
    "<|begin_of_query|>", "<|end_of_query|>", "<|begin_of_documents|>", "<|end_of_documents|>"
)
_SEARCH_R1 = _Tags("<search>", "</search>", "<information>", "</information>")
_SEARCH_R1_TURN = re.compile(
    r"Question: ([^\n]*)\n<\|im_end\|>\n<\|im_start\|>assistant\n(.*?)(?=<\|im_start\|>|\Z)",
    re.DOTALL,
)


def _r1_searcher(path: Path) -> Iterator[tuple[Task, str, _Tags]]:
    for where, record in _records(path):
        written, question = record.get("gen_text_store"), record.get("question")
        if not isinstance(written, str) or not isinstance(question, str):
            raise UserError(
                f"{where}: this is no trajectory of R1-Searcher; it needs 'question' and "
                "'gen_text_store'."
            )
        verdict = record.get("gpt4o_output")
        meta = {} if verdict is None else {"judged_correct": verdict == "True"}
        task = Task(_hash(question), question.strip(), _answers(record, where), meta)
        yield task, written, _R1_SEARCHER


def _search_r1(path: Path) -> Iterator[tuple[Task, str, _Tags]]:
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a file of Search-R1 transcripts.")
    found = _SEARCH_R1_TURN.findall(path.read_text(encoding="utf-8", errors="replace"))
    if not found:
        raise UserError(f"{path} holds no Search-R1 transcript; give one with '<|im_start|>'.")
    for question, written in found:
        yield Task(_hash(question), question.strip(), ()), written, _SEARCH_R1


def _steps(written: str, tags: _Tags) -> list[Step]:
    """Thoughts, searches, observations and the answer, read from left to right, so that a tag
    inside a document is only text."""
    steps: list[Step] = []
    strays = (tags.query_ends, tags.documents_open, tags.documents_end, "</answer>")
    opening = re.compile(f"{re.escape(tags.query_opens)}|<answer>")
    while (found := opening.search(written)) is not None:
        thought, rest = written[: found.start()], written[found.end() :]
        if any(stray in thought for stray in strays):
            raise _Malformed("a stray tag")
        if thought := re.sub("</?think>", "", thought).strip():
            steps.append(Thought(thought))
        if found.group() == "<answer>":
            return [*steps, _last_step(rest)]
        query, rest = _until(rest, tags.query_ends, "a query is not closed")
        between, rest = _until(rest, tags.documents_open, "a query without documents")
        documents, written = _until(rest, tags.documents_end, "documents are not closed")
        if not query.strip():
            raise _Malformed("an empty query")
        if between.strip():
            raise _Malformed("a query without documents")
        steps.append(Action("search", {"query": query.strip()}))
        steps.append(Observation(format_passages(_documents(documents))))
    raise _Malformed("no answer")


def _last_step(rest: str) -> Answer:
    answer, tail = _until(rest, "</answer>", "an answer is not closed")
    if tail.strip():
        raise _Malformed("text after the answer")
    if not answer.strip():
        raise _Malformed("an empty answer")
    return Answer(answer.strip())


def _until(text: str, end: str, otherwise: str) -> tuple[str, str]:
    """The text before `end` and the text after it."""
    before, found, after = text.partition(end)
    if not found:
        raise _Malformed(otherwise)
    return before, after


_R1_SEARCHER_DOCUMENT = re.compile(r"Title: (.*?) Text:\s*(.*)", re.DOTALL)
_SEARCH_R1_DOCUMENT = re.compile(
    r'Doc \d+\(Title: "(.*?)"\) (.*?)(?=\nDoc \d+\(Title: |\Z)', re.DOTALL
)


def _documents(block: str) -> list[Passage]:
    """Passages of `(1)"Title: ... Text: ..."`, quoted as in CSV, or `Doc 1(Title: "...") ...`."""
    if found := _SEARCH_R1_DOCUMENT.findall(block.strip()):
        return [Passage("", title, text.strip()) for title, text in found]
    passages = []
    for document in re.split(r"^\(\d+\)", block.strip(), flags=re.MULTILINE)[1:]:
        line = document.strip()
        if line.startswith('"') and line.endswith('"'):
            line = line[1:-1].replace('""', '"')
        parts = _R1_SEARCHER_DOCUMENT.fullmatch(line)
        if parts is None:
            raise _Malformed("a document without title and text")
        passages.append(Passage("", parts[1].strip(), parts[2].strip()))
    if not passages:
        raise _Malformed("no documents")
    return passages
