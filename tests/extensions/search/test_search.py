import asyncio
import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.passages import (
    Passage,
    format_passages,
    parse_passage,
    parse_results,
)
from fieldcraft.extensions.search.bm25 import make_passage_terms, make_query_terms
from fieldcraft.extensions.search.index import FORMAT_VERSION, SearchIndex, build_index
from fieldcraft.extensions.search.tool import SearchTool
from fieldcraft.extensions.worlds.atlas.generation import generate_atlas
from fieldcraft.types import ArgumentError, UserError
from modes import modes_hold


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def index_of(tmp_path, *texts):
    corpus = write(tmp_path / "corpus.jsonl", [{"text": text} for text in texts])
    return build_index(corpus, tmp_path / "index")


def ids(index, query, topk=10):
    return [passage.id for passage in index.search([query], topk)[0]]


# -- passages


@pytest.mark.parametrize(
    ("record", "title", "text"),
    [
        ({"contents": '"Evan Morris"\nEvan L.\nMorris'}, "Evan Morris", "Evan L.\nMorris"),
        ({"contents": "Evan Morris\nEvan"}, "Evan Morris", "Evan"),
        ({"contents": "Evan Morris was"}, "", "Evan Morris was"),
        ({"contents": '""Heroes" (song)"\nBowie'}, '"Heroes" (song)', "Bowie"),
        ({"title": "Evan  Morris\n", "text": "Evan"}, "Evan Morris", "Evan"),
        ({"text": "Evan"}, "", "Evan"),
        ({"title": "Evan Morris", "contents": "Evan L."}, "Evan Morris", "Evan L."),
        ({"title": "Evan Morris", "contents": "Evan L.\nMorris"}, "Evan Morris", "Evan L.\nMorris"),
        ({"title": "Evan", "contents": '"Evan"\nMorris'}, "Evan", "Morris"),
        ({"title": None, "text": "Evan"}, "", "Evan"),
        ({"title": float("nan"), "text": "Evan"}, "", "Evan"),
        ({"title": None, "contents": "Evan Morris\nEvan"}, "Evan Morris", "Evan"),
        ({"title": 1984, "text": "A novel"}, "1984", "A novel"),
        ({"title": "Evan", "text": ""}, "Evan", ""),
    ],
)
def test_the_fields_formats_of_a_passage(record, title, text):
    assert parse_passage(record, "7") == Passage("7", title, text)
    assert parse_passage(record | {"id": 12}, "7").id == "12"
    assert parse_passage(record | {"_id": "MED-10", "metadata": {}}, "7").id == "MED-10"
    assert parse_passage(record | {"docid": 0, "_id": None}, "7").id == "0"


@given(st.text().map(lambda s: " ".join(s.split())), st.text(), st.text())
def test_contents_hold_title_and_text_unchanged(identity, title, text):
    title = " ".join(title.split())
    passage = Passage(identity, title, text, 1.5)
    if not (title.strip() or text.strip()):
        with pytest.raises(ValueError, match="holds no text"):
            parse_passage({"contents": passage.contents}, "")
    else:
        parsed = parse_passage({"id": identity, "contents": passage.contents}, "", 1.5)
        assert parsed == passage


def test_what_the_model_reads():
    found = [Passage("0", "Kalo Remi", "A person."), Passage("1", "", "No title.\nTwo lines.")]
    assert format_passages(found) == (
        'result 1: "Kalo Remi"\nA person.\nresult 2: No title.\nTwo lines.'
    )
    assert format_passages(found[:1]) == 'result 1: "Kalo Remi"\nA person.'
    assert format_passages([]) == "No result."


# -- words


def test_stop_words_count_only_where_there_is_nothing_else():
    assert make_query_terms("The capital of the Moon") == (
        ["capital", "moon", "the+capital", "capital+of", "the+moon"]
    )
    assert make_query_terms("Such was it") == ["such", "was", "it"]


def test_words_that_ask_count_only_where_there_is_nothing_else():
    assert make_query_terms("Which Moon?") == ["moon", "which+moon"]
    assert make_query_terms("The Who") == ["the", "who", "the+who"]


def test_a_word_counts_once():
    assert make_query_terms("Moon or Moon") == ["moon", "moon+or", "or+moon"]


def test_pairs_are_those_of_the_title():
    assert make_passage_terms("Kalo Remi", "Remi tavo.") == [
        "kalo",
        "remi",
        "remi",
        "tavo",
        "kalo+remi",
    ]


# -- searching


def test_scores_are_bm25(tmp_path):
    index = index_of(tmp_path, "kalo kalo remi", "tavo remi")
    [[found]] = index.search(["Kalo"], 10)
    # N = 2 passages, 1 contains the word, twice in 3 words where the mean is 2.5.
    idf = math.log(1 + (2 - 1 + 0.5) / (1 + 0.5))
    expected = idf * (1.2 + 1) * 2 / (2 + 1.2 * (1 - 0.75 + 0.75 * 3 / 2.5))
    assert found == Passage("0", "", "kalo kalo remi", pytest.approx(expected, rel=1e-6))


def test_ties_go_to_the_first_in_the_corpus(tmp_path):
    index = index_of(tmp_path, "x", *["kalo remi"] * 30, "kalo kalo")
    assert ids(index, "kalo", 5) == ["31", "1", "2", "3", "4"]
    assert ids(index, "kalo", 40) == ["31", *map(str, range(1, 31))]
    assert ids(index, "remi", 1) == ["1"]


def test_a_query_without_a_known_word_finds_nothing(tmp_path):
    index = index_of(tmp_path, "the kalo", "It")
    assert index.search(["zumato", "the zumato", "", " ?!", "The"], 3)[:4] == [[], [], [], []]
    assert ids(index, "the") == ["0"]
    assert ids(index, "it") == ["1"]


def test_similar_names_are_told_apart(tmp_path):
    names = ["Kalo Remi", "Kalos Remi", "Kalo Remis", "Kaloed Remi", "Remi Kalo"]
    corpus = write(tmp_path / "c.jsonl", [{"title": n, "text": f"{n} is one."} for n in names])
    index = build_index(corpus, tmp_path / "index")
    for name in names:
        assert index.search([name], 1)[0][0].title == name


def test_every_name_of_an_atlas_finds_its_own_article(tmp_path):
    world = generate_atlas(people=300, taught=0.5, heldout=0.3, seed=1)
    index = build_index(write(tmp_path / "c.jsonl", world.make_passages()), tmp_path / "index")
    found = index.search(list(world.entities), 1)
    assert [passages[0].title for passages in found] == list(world.entities)


def test_recall_on_hotpotqa(shared, tmp_path):
    lines = (shared / "data/qa/hotpotqa_300_with_context.jsonl").read_text().splitlines()
    questions = [json.loads(line) for line in lines]
    passages = {title: "".join(text) for q in questions for title, text in q["context"]}
    assert len(passages) == 2958
    corpus = write(tmp_path / "c.jsonl", [{"title": t, "text": x} for t, x in passages.items()])
    index = build_index(corpus, tmp_path / "index")
    recalls = []
    for question in questions:
        gold = {title for title, _ in question["supporting_facts"]}
        found = {passage.title for passage in index.search([question["question"]], 5)[0]}
        recalls.append(len(gold & found) / len(gold))
    assert np.mean(recalls) >= 0.78


# -- the folder


def test_an_index_is_built_once(tmp_path):
    corpus = write(tmp_path / "c.jsonl", [{"text": "kalo"}])
    out = tmp_path / "deep" / "index"
    first = build_index(corpus, out)
    assert first.manifest["passages"] == 1 == len(first)
    assert {"corpus_sha256", "ranking", "library"} < first.manifest.keys()
    inode = out.stat().st_ino
    build_index(corpus, out)
    assert out.stat().st_ino == inode
    write(corpus, [{"text": "kalo"}, {"text": "remi"}])
    assert len(build_index(corpus, out)) == 2
    assert [path.name for path in out.parent.iterdir()] == ["index"]


def test_a_failed_build_leaves_the_old_index_alone(tmp_path):
    index = index_of(tmp_path, "kalo")
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"text": "remi"}\nkalo\n')
    with pytest.raises(UserError, match="line 2 is not JSON"):
        build_index(corpus, tmp_path / "index")
    assert ids(SearchIndex.load(tmp_path / "index"), "kalo") == ids(index, "kalo") == ["0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index"]


def test_an_open_index_survives_its_replacement(tmp_path):
    before = index_of(tmp_path, "kalo")
    after = index_of(tmp_path, "x", "kalo remi")
    assert (ids(before, "kalo"), ids(after, "kalo")) == (["0"], ["1"])


def test_a_folder_that_is_no_index_is_never_replaced(tmp_path):
    corpus = write(tmp_path / "c.jsonl", [{"text": "kalo"}])
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter1.txt").write_text("dear reader")
    with pytest.raises(UserError, match="thesis exists and is not a search index"):
        build_index(corpus, out)
    with pytest.raises(UserError, match=r"chapter1\.txt exists and is not a search index"):
        build_index(corpus, out / "chapter1.txt")
    assert (out / "chapter1.txt").read_text() == "dear reader"
    for folder in (out, corpus):
        with pytest.raises(UserError) as refused:
            SearchIndex.load(folder)
        advice = "give a folder that 'fieldcraft index' wrote."
        assert str(refused.value) == f"{folder} is not a search index: {advice}"


@pytest.mark.parametrize("part", ["bm25", "offsets.bin"])
def test_an_index_without_its_manifest_is_built_again(tmp_path: Path, part: str) -> None:
    index_of(tmp_path, "kalo")
    folder = tmp_path / "index"
    for path in folder.iterdir():
        if path.name != part:
            path.rename(tmp_path / path.name)
    with pytest.raises(UserError, match=r"rename .*index to index\.damaged and rebuild it with"):
        SearchIndex.load(folder)


def test_an_index_that_cannot_be_written_is_searched(tmp_path):
    """As a run on a read-only disk: a folder without permission to write is alike."""
    before = index_of(tmp_path, "kalo", "remi kalo")
    folders = [tmp_path / "index" / "bm25", tmp_path / "index"]
    for lock in folders[0].glob(".*.lock"):  # copied without them
        lock.unlink()
    with modes_hold():
        for folder in folders:
            folder.chmod(0o500)
        after = SearchIndex.load(tmp_path / "index")
        for folder in folders:
            folder.chmod(0o700)
    assert ids(after, "kalo") == ids(before, "kalo") == ["0", "1"]


def test_an_index_that_is_stopped_while_it_is_replaced_stays(tmp_path, monkeypatch):
    """Ctrl-C comes after the old index was moved away, before the new one has its name."""
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "index"
    corpus.write_text('{"text": "an old passage"}\n')
    build_index(corpus, out)
    corpus.write_text('{"text": "a new passage"}\n')
    rename = Path.rename

    def stop(path, target):
        if path.name == ".index.draft":
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stop)
        with pytest.raises(KeyboardInterrupt):
            build_index(corpus, out)
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.jsonl", "index"}
    assert "old" in (out / "passages.jsonl").read_text()
    build_index(corpus, out)
    assert "new" in (out / "passages.jsonl").read_text()


def test_an_index_of_another_format_is_refused_and_rebuilt(tmp_path):
    index_of(tmp_path, "kalo")
    manifest = tmp_path / "index" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"format": {FORMAT_VERSION}', '"format": 2'))
    with pytest.raises(UserError, match="has another format"):
        SearchIndex.load(tmp_path / "index")
    assert ids(index_of(tmp_path, "kalo"), "kalo") == ["0"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "holds no passages"),
        ('{"text": "a"}\n{"title": "a"}\n', "line 2 is not a passage: it needs 'contents' or"),
        ('{"text": 3}\n', "line 1 is not a passage: it needs"),
        ('{"text": "a", "title": []}\n', "line 1 is not a passage: it needs"),
        ('{"text": " ", "title": ""}\n', "line 1 is not a passage: it holds no text"),
        ('{"text": "?!"}\n', "holds no words to search for"),
    ],
)
def test_a_bad_corpus_is_named(tmp_path, content, complaint):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(content)
    with pytest.raises(UserError, match=complaint) as error:
        build_index(corpus, tmp_path / "index")
    assert str(error.value).startswith(str(corpus))
    assert not (tmp_path / "index").exists()


def test_bad_parameters_are_named(tmp_path):
    with pytest.raises(UserError, match=r"c\.jsonl does not exist"):
        build_index(tmp_path / "c.jsonl", tmp_path / "index")
    with pytest.raises(UserError, match="topk must be at least 1, not 0"):
        SearchTool(index_of(tmp_path, "kalo"), topk=0)


def test_text_that_utf8_cannot_hold_is_kept_as_far_as_possible(tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"text": "kalo \\ud800 b\\u0000"}\n{"text": "remi"}\n')
    index = build_index(corpus, tmp_path / "index")
    assert [p.text for p in index.search(["kalo remi"], 2)[0]] == ["remi", "kalo ? b\0"]


# -- the tool


def test_the_tool_answers_with_text(tmp_path):
    corpus = write(tmp_path / "c.jsonl", [{"title": n, "text": f"About {n}."} for n in "ABCD"])
    search = SearchTool(build_index(corpus, tmp_path / "index"), topk=2)
    assert search.name == "search"
    assert search.schema["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what to look for, in a few words."}
        },
        "required": ["query"],
    }
    assert asyncio.run(search(query="about D")) == (
        'result 1: "D"\nAbout D.\nresult 2: "A"\nAbout A.'
    )
    assert asyncio.run(search(query="zumato")) == "No result."
    with pytest.raises(ArgumentError, match="query: Input should be a valid string"):
        asyncio.run(search(query=["D"]))


def test_the_tool_searches_inside_the_event_loop():
    class Recorder:
        def search(self, queries, topk):
            threads.append(threading.current_thread())
            return [[]]

    threads: list[threading.Thread] = []
    asyncio.run(SearchTool(Recorder())(query="x"))
    assert threads == [threading.current_thread()]


@pytest.mark.parametrize("place", [".", "../empty"])
def test_an_index_never_replaces_the_working_directory(place, tmp_path, monkeypatch):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"text": "Ada"}\n')
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(UserError, match="contains the working directory; choose another place"):
        build_index(corpus, Path(place))
    assert {*tmp_path.iterdir()} == {corpus, tmp_path / "empty"}


@given(st.lists(st.tuples(st.text("ab c", max_size=5), st.text('ab "\n.', min_size=1)), max_size=3))
def test_results_are_read_back(passages):
    """Passages are recovered from the text that the model reads, except for outer white space."""
    found = [Passage("0", " ".join(title.split()), f"x{text}x") for title, text in passages]
    assert parse_results(format_passages(found)) == [(p.title, p.text) for p in found]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Ada Lind was born in Northport.",
        'So:\nresult 1: "Ada"\nAda was born.',
        'result 2: "Ada"\nAda was born.',
        'result 1: "Ada"\nAda was born.\nresult 3: "Bo"\nBo was born.',
        'result 1: "Ada',
        'result 1: "Ada"',
        'result 1: "Ada"\n',
        "result 1: ",
        "result 1:Ada was born.",
    ],
)
def test_other_texts_are_no_results(text):
    assert parse_results(text) is None
