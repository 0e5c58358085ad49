"""Evidence in search results: the sentence and the words that state an accepted answer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from fieldcraft.data.decontamination import normalise_text
from fieldcraft.data.passages import parse_results
from fieldcraft.extensions.curation.sentences import split_sentences
from fieldcraft.records.words import split_words
from fieldcraft.rewards.answers import CLOSED_ANSWERS, QUOTES, SPACE_CHARACTERS, normalise

Results = Sequence[tuple[str, str]]  # title and text of each passage
_CLOSED_ANSWERS = CLOSED_ANSWERS | {"true", "false"}
_AROUND = f"{QUOTES}{SPACE_CHARACTERS}()[]{{}},;:"  # around an answer in a sentence


class Evidence(NamedTuple):
    """Place of an answer: the title of its passage, its sentence, and the answer as written
    there."""

    title: str
    sentence: str
    span: str


class _Word(NamedTuple):
    """Normalised word and its position in the text, from `start` (inclusive) to `end`
    (exclusive)."""

    text: str
    start: int
    end: int


def read_results(observation: str) -> Results:
    """Return the passages in an observation of the search; text in another form is one passage
    without a title."""
    found = parse_results(observation)
    return [("", observation)] if found is None else found


def is_closed_answer(answer: str) -> bool:
    """Return whether an answer, such as yes or true, can only follow from what a passage states:
    the word itself occurs in many passages, and is no evidence."""
    return normalise(answer) in _CLOSED_ANSWERS


def find_evidence(
    results: Results, answers: Sequence[str], question: str, titles: Collection[str] = ()
) -> Evidence | None:
    """Return the first sentence that shares the most words with the question among those that
    contain an accepted answer, after normalisation; of several answers, the longest one. With
    `titles`, in the form of `normalise_text`, only passages with one of them count. Return None if
    there is no such sentence. A closed answer has no evidence (`is_closed_answer`)."""
    question_words = set(split_words(question))
    stated_answers = [answer for answer in answers if not is_closed_answer(answer)]
    best, best_rank = None, (-1, -1)
    for title, text in results:
        if titles and normalise_text(title) not in titles:
            continue
        for answer in stated_answers:
            for evidence in _find_in_passage(title, text, answer):
                shared = len(question_words & set(split_words(evidence.sentence)))
                rank = (len(normalise(answer).split()), shared)
                if rank > best_rank:
                    best, best_rank = evidence, rank
    return best


def _find_in_passage(title: str, text: str, answer: str) -> Iterator[Evidence]:
    """Yield every occurrence of an answer in a passage, or the one in its title if there is no
    other."""
    gold_words = normalise(answer).split()
    spans = list(_find_spans(text, gold_words))
    if not spans:
        for start, end in _find_spans(title, gold_words):
            yield Evidence(title, title, _trim(title[start:end], answer))
            return
    sentences, position = split_sentences(text), 0
    for sentence in sentences:
        for start, end in spans:
            if position <= start < position + len(sentence):
                yield Evidence(title, sentence.strip(), _trim(text[start:end], answer))
        position += len(sentence)


def _find_spans(text: str, gold_words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the positions at which the normalised words of an answer stand in a text."""
    if not gold_words or f" {' '.join(gold_words)} " not in f" {normalise(text)} ":
        return
    words = list(_normalise_words(text))
    for index in range(len(words) - len(gold_words) + 1):
        found = words[index : index + len(gold_words)]
        if [word.text for word in found] == list(gold_words):
            yield found[0].start, found[-1].end


def _normalise_words(text: str) -> Iterator[_Word]:
    """Yield the normalised words of a text; articles and punctuation yield nothing."""
    position = 0
    for written in text.split():
        start = text.index(written, position)
        position = start + len(written)
        for word in normalise(written).split():
            yield _Word(word, start, position)


def _trim(span: str, answer: str) -> str:
    """Return an answer in a sentence without punctuation around it; a full stop stays if the
    accepted answer ends in one, too."""
    trimmed = span.strip(_AROUND)
    return trimmed if answer.endswith(".") else trimmed.rstrip(f".!?{_AROUND}")
