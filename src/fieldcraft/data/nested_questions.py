"""Records that contain several questions: the paragraphs of SQuAD."""

from __future__ import annotations

from fieldcraft.data.records import Record, RecordError


def split_questions(record: Record) -> list[Record]:
    """Return the questions of a SQuAD article, each with its title and paragraph, or any other
    record unchanged, as a single question. Raises RecordError for an invalid article."""
    match record.get("paragraphs"):
        case [{"qas": _}, *_] as paragraphs:
            title = record.get("title")
            return [
                {**question, "title": title, "context": paragraph.get("context")}
                for paragraph in paragraphs
                for question in _get_paragraph_questions(paragraph)
            ]
    return [record]


def _get_paragraph_questions(paragraph: object) -> list[Record]:
    match paragraph:
        case {"qas": list(questions)} if all(isinstance(each, dict) for each in questions):
            return questions
    raise RecordError(
        "a paragraph without questions",
        "a paragraph has no list of questions; write them as 'qas', or remove the record.",
    )
