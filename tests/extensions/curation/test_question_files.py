"""Files of a run from published data sets: shapes of NQ, HotpotQA, MuSiQue, and the real ones."""

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_parts import status
from fieldcraft.data.decontamination import EvaluationPassages, hash_passage
from fieldcraft.data.passages import format_passages, read_corpus
from fieldcraft.data.tasks import read_tasks
from fieldcraft.extensions.curation.question_files import (
    QuestionFileSettings,
    any_occurs,
    write_question_files,
)
from fieldcraft.extensions.curation.retrieved import SearchPath, find_path
from fieldcraft.extensions.search.index import build_index
from fieldcraft.types import UserError
from retrieval_parts import write_lines

NQ = {
    "question": "who founded northport",
    "answers": ["Ada Lind"],
    "ctxs": [
        {"title": "Northport", "text": "A town. Ada Lind founded it. It is old.", "isgold": True},
        {"title": "Other", "text": "A distractor.", "isgold": False},
    ],
}
HOTPOT = {
    "_id": "h1",
    "question": "Are Eastwick and Southmere both towns?",
    "answer": "yes",
    "supporting_facts": [["Eastwick", 0], ["Southmere", 0]],
    "context": [
        ["Eastwick", ["Eastwick is a town.", " It is big."]],
        ["Distractor", ["It is none."]],
        ["Southmere", ["Southmere is a town."]],
    ],
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Who leads the city where Bo was born?",
    "answer": "Cy Dahl",
    "paragraphs": [
        {"idx": 0, "title": "Bo", "paragraph_text": "Born in Midvale.", "is_supporting": True},
        {"idx": 1, "title": "Bo", "paragraph_text": "Another Bo.", "is_supporting": False},
        {"idx": 2, "title": "Midvale", "paragraph_text": "Led by Cy Dahl.", "is_supporting": True},
    ],
    "question_decomposition": [{"paragraph_support_idx": 0}, {"paragraph_support_idx": 2}],
}


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def test_questions_know_their_passages(tmp_path: Path) -> None:
    plain = {"question": "who sang it", "golden_answers": ["Di"]}
    records = {"nq": NQ, "hotpot": HOTPOT, "musique": MUSIQUE, "plain": plain}
    files = [write_lines(tmp_path / f"{name}.jsonl", [each]) for name, each in records.items()]
    settings = QuestionFileSettings(max_words=5, heldout=1)
    out = tmp_path / "out"
    summary = write_question_files(files, [], out, settings)
    assert (summary["questions"], summary["train"], summary["heldout"]) == (4, 3, 1)
    assert read_json(out / "summary.json") == summary
    found = [*read_tasks(out / "tasks.jsonl"), *read_tasks(out / "heldout.jsonl")]
    meta = {task.question: task.meta for task in found}
    nq = meta["who founded northport"]
    assert (nq["gold_titles"], nq["data_source"]) == (["Northport"], "nq")
    pieces = ("A town.", "Ada Lind founded it.", "It is old.")
    assert nq["gold_passages"] == [hash_passage(text) for text in pieces]
    assert meta["Are Eastwick and Southmere both towns?"]["gold_titles"] == [
        "Eastwick",
        "Southmere",
    ]
    musique = meta["Who leads the city where Bo was born?"]
    assert musique["gold_titles"] == ["Bo", "Midvale"]
    assert hash_passage("Another Bo.") not in musique["gold_passages"]
    assert "gold_passages" not in meta["who sang it"]
    texts = [passage.text for passage in read_corpus(out / "corpus.jsonl")]
    assert texts == [
        *("A town.", "Ada Lind founded it.", "It is old.", "A distractor."),
        *("Eastwick is a town.", "It is big.", "It is none.", "Southmere is a town."),
        *("Born in Midvale.", "Another Bo.", "Led by Cy Dahl."),
    ]


def test_titles_without_a_value_come_from_the_passages(tmp_path: Path) -> None:
    empty = {"metadata": {"gold_titles": None, "gold_passages": None}}
    plain = {"question": "who sang it", "golden_answers": ["Di"]}
    files = [write_lines(tmp_path / "q.jsonl", [NQ | empty, MUSIQUE | empty, plain | empty])]
    write_question_files(files, [], tmp_path / "out", QuestionFileSettings(heldout=1))
    found = [
        task for name in ("tasks", "heldout") for task in read_tasks(tmp_path / f"out/{name}.jsonl")
    ]
    titles = {task.question: task.meta["gold_titles"] for task in found}
    assert titles == {
        NQ["question"]: ["Northport"],
        MUSIQUE["question"]: ["Bo", "Midvale"],
        "who sang it": None,
    }


titles = st.sampled_from([f"{first}{last}" for first in ("Ash", "Fir", "Oak") for last in "abcd"])
records = st.lists(st.tuples(titles, titles), min_size=3, max_size=12)


@given(records, st.integers(1, 2), st.integers(0, 3))
def test_no_training_question_has_a_passage_of_a_held_out_one(
    pairs: list[tuple[str, str]], heldout: int, seed: int
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        questions = [make_pair(number, *pair) for number, pair in enumerate(pairs)]
        file = write_lines(folder / "q.jsonl", questions)
        settings = QuestionFileSettings(heldout=heldout, seed=seed)
        try:
            write_question_files([file], [], folder / "out", settings)
        except UserError as error:
            if "no question can be held out" in str(error):
                return
            raise
        tested = read_tasks(folder / "out/heldout.jsonl")
        trained = read_tasks(folder / "out/tasks.jsonl")
        assert 0 < len(tested) <= heldout
        assert len(tested) + len(trained) == len(pairs)
        passages = EvaluationPassages(tested)
        for task in trained:
            assert not [title for title in task.meta["gold_titles"] if (title, title) in passages]


def make_pair(number: int, first: str, second: str) -> dict[str, Any]:
    facts = [[first, 0], [second, 0]]
    context = [
        [title, [f"{title} grows in place {title}."]] for title in dict.fromkeys((first, second))
    ]
    question = f"Which of the trees of garden {number} is it?"
    return {"question": question, "answer": first, "supporting_facts": facts, "context": context}


def make_articles(shape: str) -> list[dict[str, Any]]:
    """Return the records of three articles with two questions each, in the shape of a data set."""
    records: list[dict[str, Any]] = []
    for name in ("Ash", "Fir", "Oak"):
        text = f"{name} grows in the north."
        questions = [f"Where does {name.lower()} grow?", f"What is the tree {name.lower()}?"]
        if shape == "squad":
            answered = [
                {"id": q, "question": q, "answers": [{"text": "the north", "answer_start": 1}]}
                for q in questions
            ]
            records.append({"title": "", "paragraphs": [{"context": text, "qas": answered}]})
        elif shape == "boolq":
            records += [{"question": q, "passage": text, "answer": True} for q in questions]
        elif shape == "race":
            options = {"options": ["In the north", "In the south"], "answer": "A"}
            records += [{"question": q, "article": text, **options} for q in questions]
        else:
            prompts = [f"Answer the question.\nQuestion: {q}" for q in questions]
            content = {"context": text, "reward_model": {"ground_truth": "the north"}}
            records += [{"prompt": [{"role": "user", "content": p}], **content} for p in prompts]
    return records


@pytest.mark.parametrize("shape", ["squad", "boolq", "race", "verl"])
def test_questions_on_one_passage_are_held_out_together(shape: str, tmp_path: Path) -> None:
    """The question of a task is not always the text of one field of its record."""
    file = write_lines(tmp_path / "q.jsonl", make_articles(shape))
    corpus = write_lines(tmp_path / "c.jsonl", [{"title": "North", "text": "Trees in the north."}])
    settings = QuestionFileSettings(heldout=2)
    write_question_files([file], [corpus], tmp_path / "out", settings)
    tested = read_tasks(tmp_path / "out/heldout.jsonl")
    trained = read_tasks(tmp_path / "out/tasks.jsonl")
    assert (len(tested), len(trained)) == (2, 4)
    [passage] = {hashed for task in tested for hashed in task.meta["gold_passages"]}
    others = [hashed for task in trained for hashed in task.meta["gold_passages"]]
    assert len(others) == len(trained)
    assert passage not in others


def test_a_question_like_a_held_out_one_is_left_out(tmp_path: Path) -> None:
    questions = ["Who founded the old town of Ironton?", "Who founded the town of old Ironton?"]
    plain = [{"question": question, "answer": "Ada"} for question in [*questions, "Who is Bo?"]]
    file = write_lines(tmp_path / "q.jsonl", plain)
    corpus = write_lines(tmp_path / "c.jsonl", [{"title": "a", "text": "Ada"}])
    left_out = []
    for seed in range(3):
        out = tmp_path / str(seed)
        settings = QuestionFileSettings(heldout=1, seed=seed)
        summary = write_question_files([file], [corpus], out, settings)
        [tested] = read_tasks(out / "heldout.jsonl")
        assert summary["train"] == (1 if tested.question in questions else 2)
        left_out.append(summary["left_out"])
    assert {"like a held-out one": 1} in left_out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nq.jsonl", "--heldout", "1"], "the files have 1 questions, and 1 are to be held out"),
        (["none.jsonl"], "none.jsonl does not exist"),
        (["plain.jsonl", "--heldout", "1"], "the files hold no passages: add a file of passages"),
        (["nq.jsonl", "--corpus", "plain.jsonl"], "plain.jsonl"),
        (["plain.jsonl", "--corpus", "other.jsonl", "--heldout", "1"], "none of the answers is in"),
        (["closed.jsonl", "--corpus", "other.jsonl", "--heldout", "1"], "none of the answers is"),
        (["same.jsonl", "--heldout", "1"], "no question can be held out, because at least 2 share"),
        (["alike.jsonl", "nq.jsonl", "--heldout", "2"], "none is left for training: give more"),
        (["plain.jsonl", "--heldout", "0"], "--heldout"),
        (["nq.jsonl", "--out", "."], "exists and is not empty"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_lines(tmp_path / "nq.jsonl", [NQ])
    write_lines(tmp_path / "plain.jsonl", [{"question": f"Who {n}?", "answer": "A"} for n in "ab"])
    write_lines(tmp_path / "other.jsonl", [{"title": "B", "text": "Nothing."}])
    closed = {"question": "Is it?", "answer": "no"}  # a part of "Nothing", and no evidence
    write_lines(tmp_path / "closed.jsonl", [closed, {"question": "Who?", "answer": "A"}])
    write_lines(tmp_path / "same.jsonl", [NQ, NQ | {"question": "what is northport"}])
    alike = ("Who founded the old town of Ironton?", "Who founded the town of old Ironton?")
    write_lines(tmp_path / "alike.jsonl", [{"question": q, "answer": "Ada"} for q in alike])
    monkeypatch.chdir(tmp_path)
    out = [] if "--out" in arguments else ["--out", "out"]
    assert status("prepare", *arguments, *out) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


CHARS = st.text("ab ", max_size=12)


@given(st.lists(CHARS), st.lists(CHARS))
def test_answers_in_texts(answers: list[str], texts: list[str]) -> None:
    expected = any(answer in text for answer in answers for text in texts)
    if "" not in answers:  # an empty answer is in every text but the empty one
        assert any_occurs(answers, texts) == expected


def test_many_answers_and_passages_without_any_of_them(tmp_path: Path) -> None:
    """With a comparison of each answer with each passage, this would take an hour."""
    questions = [{"question": f"Who is {n}?", "answer": f"person {n}"} for n in range(60_000)]
    passages = [{"title": f"{n}", "text": f"A text of {n} words. " * 20} for n in range(30_000)]
    file = write_lines(tmp_path / "questions.jsonl", questions)
    corpus = write_lines(tmp_path / "corpus.jsonl", passages)
    with pytest.raises(UserError, match="none of the answers is in a passage"):
        write_question_files([file], [corpus], tmp_path / "out", QuestionFileSettings())


@pytest.mark.parametrize("facts", [3, [1], ["Eastwick"], [[]], {}, "Eastwick", None])
def test_unreadable_supporting_facts_mark_no_passage(facts: Any, tmp_path: Path) -> None:
    questions = [HOTPOT | {"supporting_facts": facts}, {"question": "Who?", "answer": "It is none"}]
    file = write_lines(tmp_path / "hotpot.jsonl", questions)
    write_question_files([file], [], tmp_path / "out", QuestionFileSettings(heldout=1))
    found = [*read_tasks(tmp_path / "out/tasks.jsonl"), *read_tasks(tmp_path / "out/heldout.jsonl")]
    assert [task.meta.get("gold_passages") for task in found] == [None, None]


def test_the_command_writes_files_that_a_run_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = [HOTPOT, {**HOTPOT, "_id": "h2", "question": "Is it?"}]
    plain = [{"question": "who sang it", "answer": "One"}]
    files = [write_lines(tmp_path / "h.jsonl", pair), write_lines(tmp_path / "p.jsonl", plain)]
    corpus = write_lines(tmp_path / "more.jsonl", [{"title": "More", "text": "One. Two. Three."}])
    arguments = [*files, "--corpus", corpus, "--out", tmp_path / "out", "--heldout", "1"]
    assert status("prepare", *arguments, "--max-words", "2") == 0
    output = " ".join(capsys.readouterr().out.split())
    # two questions share their passages, so none of them can be held out alone
    assert "2 questions, 1 held out" in output
    assert "One. Two." in [passage.text for passage in read_corpus(tmp_path / "out/corpus.jsonl")]


# -- real data ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_files(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files of the recipe nq from Natural Questions and three other data sets."""
    folder, out = shared / "data/qa", tmp_path_factory.mktemp("real") / "nq"
    names = ("2wiki_corpus_6119.json", "hotpotqa_300_with_context.jsonl")
    corpora = [folder / name for name in (*names, "musique_100_with_context.json")]
    questions = [folder / "nq_open_oracle_2655.jsonl.gz"]
    summary = write_question_files(questions, corpora, out, QuestionFileSettings())
    assert (summary["train"], summary["heldout"], summary["passages"]) == (2255, 400, 17510)
    return out


@pytest.mark.long
def test_the_retrieval_ceiling_of_natural_questions(real_files: Path) -> None:
    """Plain scripts measured 0.685 with the first passage, 0.815 with three, and 0.14 more with a
    second query, with other held-out questions: three standard errors are 0.07."""
    index = build_index(real_files / "corpus.jsonl", real_files / "index")
    tasks = read_tasks(real_files / "heldout.jsonl")

    def measure(top_k: int, searches: int) -> float:
        async def search(query: str) -> str:
            return format_passages(index.search([query], top_k)[0])

        async def find_all() -> list[SearchPath]:
            return [await find_path(task, search, searches, 24) for task in tasks]

        return sum(not path.reason for path in asyncio.run(find_all())) / len(tasks)

    one = measure(top_k=1, searches=1)
    assert abs(one - 0.685) < 0.07
    assert abs(measure(top_k=3, searches=1) - 0.815) < 0.06
    assert abs(measure(top_k=1, searches=2) - one - 0.14) < 0.05
