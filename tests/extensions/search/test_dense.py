import asyncio
import json
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoders import write_bert, write_word_encoder
from fieldcraft.extensions.search.client import RemoteSearchTool
from fieldcraft.extensions.search.dense import PASSAGES_PER_CHUNK, TextEncoder
from fieldcraft.extensions.search.index import SearchIndex, build_index, fuse_rankings
from fieldcraft.extensions.search.server import create_app
from fieldcraft.extensions.search.tool import SearchTool
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import UserError

pytest.importorskip("sentence_transformers", reason="needs the extra dense")
pytest.importorskip("faiss", reason="needs the extra dense")

WORDS = {
    "[UNK]": [0, 0, 0, 1],
    "kalo": [1, 0, 0, 0],
    "remi": [0, 1, 0, 0],
    "tavo": [0.6, 0.8, 0, 0],
    "query": [0, 0, 1, 0],
    "passage": [0, 0, 1, 0],
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_word_encoder(tmp_path_factory.mktemp("encoder") / "words", WORDS)


def write(path, *texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def found(index, query, topk=3):
    return [(passage.id, round(passage.score, 3)) for passage in index.search([query], topk)[0]]


@pytest.mark.parametrize("approximate", [False, True])
def test_scores_are_cosines(tmp_path, encoder, approximate):
    corpus = write(tmp_path / "c.jsonl", "kalo", "kalo remi", "tavo", "zumato")
    index = build_index(
        corpus, tmp_path / "i", ranking="dense", encoder=encoder, approximate=approximate
    )
    assert len(index) == 4

    def near(cosine):  # 6 bits per number
        return pytest.approx(cosine, abs=0.02 if approximate else 1e-3)

    assert found(index, "Kalo") == [("0", near(1)), ("1", near(0.707)), ("2", near(0.6))]
    # (1, 0) + (0.6, 0.8) has the length 1.789
    assert found(index, "kalo tavo", 1) == [("1", near(0.949))]
    assert index.search([], 3) == []
    assert [found(index, q, 1)[0][0] for q in ("remi", "what")] == ["2", "3"]


def test_several_queries_are_answered_in_their_order(tmp_path, encoder):
    corpus = write(tmp_path / "c.jsonl", *(["kalo", "remi", "tavo"] * 2))
    index = build_index(corpus, tmp_path / "i", ranking="dense", encoder=encoder)
    queries = ["kalo", "remi", "tavo", "kalo"] * 10  # more than one batch of the multiplication
    firsts = [[passage.id for passage in passages] for passages in index.search(queries, 2)]
    assert firsts == [["0", "3"], ["1", "4"], ["2", "5"], ["0", "3"]] * 10  # ties in index order


def test_a_corpus_of_several_chunks_keeps_its_order(tmp_path, encoder):
    texts = ["remi"] * (2 * PASSAGES_PER_CHUNK + 10)
    texts[PASSAGES_PER_CHUNK], texts[-1] = "kalo", "kalo remi"
    corpus = write(tmp_path / "c.jsonl", *texts)
    index = build_index(corpus, tmp_path / "i", ranking="dense", encoder=encoder)
    assert [n for n, _ in found(index, "kalo", 2)] == [str(PASSAGES_PER_CHUNK), str(len(texts) - 1)]


def test_the_graph_finds_what_exact_search_finds(tmp_path, monkeypatch):
    """Search random vectors of 16 dimensions, a hard case; the graph is built in several chunks."""
    monkeypatch.setattr("fieldcraft.extensions.search.dense.PASSAGES_PER_CHUNK", 64)
    rng = np.random.default_rng(0)
    words = {f"w{i}": vector for i, vector in enumerate(rng.normal(size=(500, 16)))}
    name = write_word_encoder(tmp_path / "e", {"[UNK]": [0] * 16, **words})
    corpus = write(tmp_path / "c.jsonl", *words)
    exact, graph = (
        build_index(
            corpus,
            tmp_path / f"i{approximate}",
            ranking="dense",
            encoder=name,
            approximate=approximate,
        )
        for approximate in (False, True)
    )
    queries = [f"w{i} w{i + 1}" for i in range(100)]
    pairs = zip(exact.search(queries, 10), graph.search(queries, 10), strict=True)
    shared = [len({p.id for p in a} & {p.id for p in b}) / 10 for a, b in pairs]
    assert np.mean(shared) >= 0.95
    assert SearchIndex.load(tmp_path / "iTrue").search(queries, 10) == graph.search(queries, 10)


@pytest.mark.parametrize(("approximate", "name"), [(False, "vectors.npy"), (True, "graph.faiss")])
def test_vectors_that_do_not_fit_are_named(tmp_path, encoder, approximate, name):
    for folder, texts in (("i", ["kalo", "remi", "tavo"]), ("other", ["kalo", "remi"])):
        corpus = write(tmp_path / "c.jsonl", *texts)
        settings = {"ranking": "dense", "encoder": encoder, "approximate": approximate}
        build_index(corpus, tmp_path / folder, **settings)
    (tmp_path / "other" / name).replace(tmp_path / "i" / name)
    with pytest.raises(UserError, match=r"2 vectors of 3 passages.*; rename "):
        SearchIndex.load(tmp_path / "i")
    (tmp_path / "i" / name).write_bytes(b"")
    with pytest.raises(UserError, match=r"rename .*damaged and rebuild it"):
        SearchIndex.load(tmp_path / "i")


# -- fusion


def test_ranks_are_fused():
    fused = fuse_rankings([[(7, 9.0), (3, 8.0), (5, 1.0)], [(3, 0.9), (2, 0.8)]])
    assert fused == [
        (3, pytest.approx(1 / 62 + 1 / 61)),
        (7, pytest.approx(1 / 61)),
        (2, pytest.approx(1 / 62)),
        (5, pytest.approx(1 / 63)),
    ]
    assert fuse_rankings([[(4, 1.0)], [(2, 1.0)]]) == [
        (2, 1 / 61),
        (4, 1 / 61),
    ]  # ties: in corpus order


@given(st.lists(st.permutations(range(6)), min_size=1, max_size=3))
def test_fusion_loses_nothing_and_what_is_first_everywhere_stays_first(orders):
    fused = fuse_rankings([[(n, 0.0) for n in order] for order in orders])
    assert sorted(n for n, _ in fused) == list(range(6))
    assert fused == sorted(fused, key=lambda item: -item[1])
    if len({order[0] for order in orders}) == 1:
        assert fused[0][0] == orders[0][0]


def test_a_hybrid_finds_by_words_and_by_meaning(tmp_path, encoder):
    corpus = write(tmp_path / "c.jsonl", "remi", "kalo remi", "tavo", "zumato")
    index = build_index(corpus, tmp_path / "i", encoder=encoder)
    assert index.manifest["ranking"] == "hybrid"
    # Words only: 0, 1. Vectors only: 0 (cosine 1), 2 (0.8), 1 (0.707), 3 (0).
    fused = [("0", 2 / 61), ("1", 1 / 62 + 1 / 63), ("2", 1 / 62), ("3", 1 / 64)]
    assert found(index, "remi", 4) == [(i, round(score, 3)) for i, score in fused]
    assert [n for n, _ in found(index, "zumato", 1)] == ["3"]


# -- encoders


def test_prompts_are_those_of_the_model(tmp_path, encoder):
    assert TextEncoder(encoder).prompts == {}
    own = write_word_encoder(tmp_path / "own", WORDS, {"query": "query: ", "passage": "passage: "})
    vectors = TextEncoder(own).encode_queries(["kalo"])
    assert vectors == pytest.approx(np.array([[0.577, 0, 0.577, 0.577]]), abs=1e-3)  # and ":"
    e5 = TextEncoder(write_word_encoder(tmp_path / "e5-words", WORDS))
    assert e5.prompts == {"query": "query: ", "document": "passage: "}
    assert e5.encode_queries(["kalo"]) == pytest.approx(vectors)


def test_a_model_made_for_products_keeps_the_length_of_its_vectors(tmp_path):
    name = write_word_encoder(tmp_path / "e", WORDS | {"kalo": [2, 0, 0, 0]})
    config = tmp_path / "e" / "config_sentence_transformers.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {"similarity_fn_name": "dot"}))
    corpus = write(tmp_path / "c.jsonl", "remi", "kalo")
    index = build_index(corpus, tmp_path / "i", ranking="dense", encoder=name)
    assert found(index, "kalo") == [("1", 4), ("0", 0)]


def test_a_bare_checkpoint_is_an_encoder(tmp_path):
    name = write_bert(tmp_path / "bert", seed=0)
    corpus = write(tmp_path / "c.jsonl", "kalo remi", "tavo", "abc")
    index = build_index(corpus, tmp_path / "i", ranking="dense", encoder=name)
    assert [found(index, text, 1)[0] for text in ("tavo", "abc")] == [("1", 1.0), ("2", 1.0)]


def test_an_index_of_another_model_is_refused(tmp_path):
    name = write_bert(tmp_path / "bert", seed=0)
    corpus = write(tmp_path / "c.jsonl", "kalo remi", "tavo")
    for approximate in (False, True):
        out = tmp_path / f"i{approximate}"
        build_index(corpus, out, ranking="dense", encoder=name, approximate=approximate)
        assert len(SearchIndex.load(out)) == 2
    write_bert(tmp_path / "bert", seed=1)
    for approximate in (False, True):
        with pytest.raises(
            UserError, match=r"was built with another version of the encoder .*bert"
        ):
            SearchIndex.load(tmp_path / f"i{approximate}")


def test_an_encoder_that_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(UserError, match="The encoder /no/model does not exist; give a folder or"):
        TextEncoder("/no/model")
    with pytest.raises(UserError, match=r"The encoder .* cannot be loaded \("):
        TextEncoder(str(tmp_path))


@pytest.mark.parametrize("missing", ["sentence_transformers", "faiss"])
def test_a_missing_extra_is_named(tmp_path, encoder, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    corpus = write(tmp_path / "c.jsonl", "kalo")
    with pytest.raises(UserError, match=rf"needs {missing}.*pip install 'fieldcraft\[dense\]'"):
        build_index(corpus, tmp_path / "i", encoder=encoder, approximate=True)
    assert not (tmp_path / "i").exists()


def test_settings_that_contradict_each_other_are_named(tmp_path, encoder):
    corpus = write(tmp_path / "c.jsonl", "kalo")
    for settings in ({"ranking": "dense"}, {"ranking": "hybrid"}, {"approximate": True}):
        with pytest.raises(UserError, match="Search by vectors needs an encoder"):
            build_index(corpus, tmp_path / "i", **settings)
    with pytest.raises(UserError, match="BM25 does not use an encoder"):
        build_index(corpus, tmp_path / "i", ranking="bm25", encoder=encoder)


# -- the folder, the tool, the server


def test_an_index_is_built_anew_when_its_settings_change(tmp_path, encoder):
    corpus, out = write(tmp_path / "c.jsonl", "kalo"), tmp_path / "i"

    def files(**settings):
        build_index(corpus, out, **settings)
        names = {"bm25", "vectors.npy", "graph.faiss"}
        return out.stat().st_ino, {file.name for file in out.iterdir()} & names

    first, index_files = files(encoder=encoder)
    assert index_files == {"bm25", "vectors.npy"}
    assert files(encoder=encoder) == (first, index_files)
    assert files(ranking="dense", encoder=encoder)[1] == {"vectors.npy"}
    assert files(ranking="dense", encoder=encoder, approximate=True)[1] == {"graph.faiss"}
    assert files()[1] == {"bm25"}


def test_the_tool_and_the_server_take_any_index(tmp_path, encoder):
    corpus = write(tmp_path / "c.jsonl", "kalo", "tavo")
    build_index(corpus, tmp_path / "i", encoder=encoder)
    index = SearchIndex.load(tmp_path / "i")
    text = "result 1: tavo\nresult 2: kalo"
    assert asyncio.run(SearchTool(index)(query="remi")) == text
    with serve_in_thread(create_app(index)) as url:

        async def many():
            tool = RemoteSearchTool(url)
            return await asyncio.gather(*(tool(query="remi") for _ in range(20)))

        assert asyncio.run(many()) == [text] * 20
