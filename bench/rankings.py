"""Compare BM25, dense and hybrid search on real questions.

    python bench/rankings.py ../shared/data/qa --encoder all-MiniLM-L6-v2

The query is the question, and the corpus consists of the paragraphs of all questions of the file.
Recall is the share of the titles of paragraphs with the answer that are in the top 5; milliseconds
are the median of sequential queries on one thread.

Without --encoder, the vectors come from latent semantic analysis (Deerwester et al. 1990) of the
same passages: 256 dimensions, words weighted by their inverse document frequency. They show the
effect of fusion, not the quality of a trained encoder.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from fieldcraft.data.corpora import CorpusFile
from fieldcraft.data.passages import read_corpus
from fieldcraft.data.tasks import read_tasks
from fieldcraft.extensions.search.index import SearchIndex, build_index
from fieldcraft.records.words import split_words

FILES = {
    "HotpotQA-300": "hotpotqa_300_with_context.jsonl",
    "MuSiQue-100": "musique_100_with_context.json",
}
DIMENSIONS = 256
TOPK = 5


def write_lsa(corpus: Path, out: Path, dimensions: int = DIMENSIONS) -> str:
    """Write an encoder whose text vector is the mean of word vectors, and return its path."""
    texts = [f"{passage.title}\n{passage.text}" for passage in read_corpus(corpus)]
    counts = TfidfVectorizer(tokenizer=split_words, token_pattern=None, lowercase=False)
    svd = TruncatedSVD(dimensions, random_state=0).fit(counts.fit_transform(texts))
    vectors = (svd.components_ * counts.idf_).T.astype(np.float32)
    vocabulary = {word: i + 1 for word, i in counts.vocabulary_.items()} | {"[UNK]": 0}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    weights = np.vstack([np.zeros(dimensions, dtype=np.float32), vectors])
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=weights)])
    model.save(str(out), create_model_card=False)
    return str(out)


def measure(index: SearchIndex, file: Path) -> tuple[float, float]:
    """Return recall@5 in %, and the median milliseconds per query."""
    recalls, seconds = [], []
    for task in read_tasks(file):
        start = time.perf_counter()
        [found] = index.search([task.question], TOPK)
        seconds.append(time.perf_counter() - start)
        gold = set(task.meta["gold_titles"])
        recalls.append(len(gold & {passage.title for passage in found}) / len(gold))
    return 100 * statistics.mean(recalls), 1e3 * statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with the real questions")
    parser.add_argument("--encoder", help="a sentence-transformers model; without it, LSA")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| questions | passages | ranking | recall@5 % | ms per query | build s |")
    print("|---|---|---|---|---|---|")
    for name, file in FILES.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            corpus = CorpusFile(given.data / file).ensure_passages(folder / "corpus.jsonl")
            encoder = given.encoder or write_lsa(corpus, folder / "lsa")
            kinds: dict[str, dict[str, Any]] = {
                "bm25": {},
                "dense": {"ranking": "dense", "encoder": encoder},
                "dense, approximate": {"ranking": "dense", "encoder": encoder, "approximate": True},
                "hybrid": {"ranking": "hybrid", "encoder": encoder},
            }
            for kind, settings in kinds.items():
                start = time.perf_counter()
                index = build_index(corpus, folder / kind, **settings)
                built = time.perf_counter() - start
                recall, milliseconds = measure(index, given.data / file)
                print(
                    f"| {name} | {len(index)} | {kind} | {recall:.1f} | {milliseconds:.2f}"
                    f" | {built:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
