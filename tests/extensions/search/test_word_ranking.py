"""The ranking by words is independent of tantivy's segments and threads."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from fieldcraft.data.passages import Passage
from fieldcraft.extensions.search.bm25 import BM25_FOLDER, Bm25Ranker, write_bm25
from fieldcraft.extensions.search.index import SearchIndex, build_index
from fieldcraft.types import UserError

SMALLEST_HEAP = 15_000_000  # accepted by tantivy
COUNT = 4000
QUERIES = [
    "w1 w2 w3 w4 w5 w6 w7",
    "w3",
    "rare5 w1 w2 w9 rare41 w11",
    "w0 w10 w20 rare7",
    "w17 w1 w4",
]


def passages(count):
    """Return each of forty texts many times, each time with other words that occur nowhere else."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices([f"w{i}" for i in range(30)], k=12)) for _ in range(40)]
    for number in range(count):
        own = " ".join(f"own{number}x{i}" for i in range(150))
        some = f"rare{rng.randrange(60)}" if rng.random() < 0.05 else "none"
        yield Passage(str(number), "", f"{rng.choice(texts)} {some} {own}")


@pytest.fixture(scope="module")
def single_segment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    write_bm25(passages(COUNT), folder)
    return folder


@pytest.mark.long
def test_segments_change_nothing(single_segment, tmp_path):
    write_bm25(passages(COUNT), tmp_path, SMALLEST_HEAP)
    whole, parts = Bm25Ranker(single_segment), Bm25Ranker(tmp_path)
    assert whole._searcher.num_segments == 1
    assert parts._searcher.num_segments > 2
    for depth in (1, 3, 10, 200):
        ranked = whole.rank(QUERIES, depth)
        assert ranked == parts.rank(QUERIES, depth)
        assert [len(of_one) for of_one in ranked] == [depth] * len(QUERIES)


def test_equals_stand_in_the_order_of_the_corpus(single_segment):
    """Compare all passages found by a query with a ranking of exact sums over single words."""
    ranker = Bm25Ranker(single_segment)
    for query in QUERIES:
        sums = {}
        for word in query.split():
            for number, score in ranker.rank([word], COUNT)[0]:
                sums[number] = sums.get(number, 0.0) + score
        expected = sorted(sums, key=lambda n: (-round(sums[n], 3), n))
        for depth in (2, 50, COUNT):
            assert [number for number, _ in ranker.rank([query], depth)[0]] == expected[:depth]


def test_equals_are_equal_wherever_they_stand(tmp_path):
    """Tantivy could add words up in another order once one of them, here "gone", is used up.

    Sums of the same numbers would then differ in their last bits.
    """
    rng = random.Random(1)
    kinds = [" ".join(rng.choices("abcdefghijkl", k=rng.randint(8, 30))) for _ in range(20)]
    count, last = 9000, 5000
    texts = [kinds[number % 20] + " gone" * (number in (0, last)) for number in range(count)]
    write_bm25((Passage(str(n), "", text) for n, text in enumerate(texts)), tmp_path)
    [ranked] = Bm25Ranker(tmp_path).rank(["gone b c d e f g h i j k l"], count)
    assert {number for number, _ in ranked[:2]} == {0, last}
    for kind in range(20):
        of_kind = [(n, score) for n, score in ranked[2:] if n % 20 == kind]
        assert [n for n, _ in of_kind] == sorted(n for n, _ in of_kind)
        assert len({score for _, score in of_kind}) == 1


def test_every_build_ranks_alike(single_segment, tmp_path):
    write_bm25(passages(COUNT), tmp_path)
    assert Bm25Ranker(single_segment).rank(QUERIES, 50) == Bm25Ranker(tmp_path).rank(QUERIES, 50)


def test_many_threads_find_what_one_finds(tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps({"text": p.text}) + "\n" for p in passages(500)))
    index = build_index(corpus, tmp_path / "index")
    queries = [f"w{i % 30} w{i % 7} own{i}x3" for i in range(150)]
    alone, together = index.search(queries, 5), Barrier(150)

    def ask(query):
        together.wait()
        return index.search([query], 5)[0]

    with ThreadPoolExecutor(150) as pool:
        assert list(pool.map(ask, queries)) == alone


HOSTILE = [
    "kalo" + "\u2003" + "remi\u0085tavo",  # white space that is not ASCII
    "a\0kalo\0b",
    "kalo \ud800 remi",
    "x" * 70_000 + " kalo",  # longer than the longest word that tantivy indexes
    "\x1c\x1d\u200b\ufeff kalo\x0b\x0c",
    "kalo+remi <kalo> kalo:remi (kalo AND *",
]


def test_hostile_words_are_found_and_asked_for(tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in HOSTILE))
    index = build_index(corpus, tmp_path / "index")
    found = [{passage.id for passage in some} for some in index.search(["kalo", "remi", "tavo"], 9)]
    assert found == [{"0", "1", "2", "3", "4", "5"}, {"0", "2", "5"}, {"0"}]
    for some in index.search([*HOSTILE, "kalo " * 5000], 9):
        assert {passage.id for passage in some} >= {"0", "1", "2", "3", "4", "5"}
    assert len(index.search(["kalo"], 10**30)[0]) == 6


def put(path, content):
    path.unlink()  # a process that still maps the old file would be ended by a signal
    path.write_bytes(content)


def cut(path):
    put(path, path.read_bytes()[: path.stat().st_size // 2])


def few_bytes(path):
    """Truncate a file to five bytes, which makes tantivy panic."""
    put(path, path.read_bytes()[:5])


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        (f"{BM25_FOLDER}/meta.json", lambda path: path.unlink()),
        (f"{BM25_FOLDER}/meta.json", cut),
        (f"{BM25_FOLDER}/*.idx", lambda path: path.unlink()),
        (f"{BM25_FOLDER}/*.idx", cut),
        (f"{BM25_FOLDER}/*.term", cut),
        (f"{BM25_FOLDER}/*.fast", cut),
        *((f"{BM25_FOLDER}/*.{kind}", few_bytes) for kind in ("fast", "fieldnorm", "idx", "term")),
        ("offsets.bin", cut),
        ("offsets.bin", lambda path: put(path, b"123")),
        ("passages.jsonl", cut),
        ("passages.jsonl", lambda path: put(path, b"")),
    ],
)
def test_a_damaged_index_is_named(tmp_path, pattern, damage):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps({"text": p.text}) + "\n" for p in passages(20)))
    build_index(corpus, tmp_path / "index")
    [path] = (tmp_path / "index").glob(pattern)
    damage(path)
    with pytest.raises(UserError, match=r"index .*; rename .* to .*damaged and rebuild it"):
        SearchIndex.load(tmp_path / "index").search(["w1"], 3)
