"""BM25 libraries compared: bm25s (as fieldcraft uses it) and tantivy.

    python bench/search.py ../shared/data/qa --passages 100000

Passages are recombined from the sentences of real ones, with a fixed seed. Each library builds in
one process and searches in another; memory is the peak of the whole process, disk what it wrote, a
build's time that of the processor, a query's time the wall clock's. Both are fed the same words.
Recall is of the gold titles of the real HotpotQA questions among the real passages alone.
tantivy's k1 = 1.2 and b = 0.75 are constants of the library.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tantivy

from fieldcraft.tools.search.bm25 import passage_terms, query_terms
from fieldcraft.tools.search.index import SearchIndex, build_index
from fieldcraft.tools.search.passages import read_corpus

TOPK = 3
Search = Callable[[str, int], list[str]]  # (query, topk) -> titles


def build_bm25s(corpus: Path, out: Path) -> None:
    build_index(corpus, out)


def open_bm25s(out: Path) -> Search:
    index = SearchIndex.load(out)
    return lambda query, topk: [passage.title for passage in index.search([query], topk)[0]]


def build_tantivy(corpus: Path, out: Path) -> None:
    out.mkdir()
    schema = tantivy.SchemaBuilder()
    for stored in ("id", "title", "text"):
        schema.add_text_field(stored, stored=True, tokenizer_name="raw", index_option="basic")
    schema.add_text_field("words", tokenizer_name="whitespace", index_option="freq")
    writer = tantivy.Index(schema.build(), str(out)).writer(num_threads=1)
    for passage in read_corpus(corpus):
        joined = " ".join(passage_terms(passage.title, passage.text))
        writer.add_document(
            tantivy.Document(id=passage.id, title=passage.title, text=passage.text, words=joined)
        )
    writer.commit()
    writer.wait_merging_threads()


def open_tantivy(out: Path) -> Search:
    index = tantivy.Index.open(str(out))
    searcher, schema = index.searcher(), index.schema

    def search(query: str, topk: int) -> list[str]:
        terms = [
            (tantivy.Occur.Should, tantivy.Query.term_query(schema, "words", word, "freq"))
            for word in query_terms(query)
        ]
        hits = searcher.search(tantivy.Query.boolean_query(terms), topk, count=False).hits
        return [searcher.doc(address).to_dict()["title"][0] for _, address in hits]

    return search


BUILD = {"bm25s": build_bm25s, "tantivy": build_tantivy}
OPEN = {"bm25s": open_bm25s, "tantivy": open_tantivy}


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_build(library: str, corpus: Path, out: Path) -> dict[str, float]:
    start = time.process_time()
    BUILD[library](corpus, out)
    seconds = time.process_time() - start
    disk = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return {"build_s": seconds, "build_mib": peak_mib(), "disk_mib": disk / 2**20}


def measure_search(library: str, out: Path, queries: Path) -> dict[str, float]:
    asked = json.loads(queries.read_text())
    idle, start = peak_mib(), time.perf_counter()
    search = OPEN[library](out)
    result = {"idle_mib": idle, "open_ms": 1e3 * (time.perf_counter() - start)}
    for kind in ("titles", "questions"):
        search(asked[kind][0], TOPK)  # the first touch of a page is the disk's time
        seconds = []
        for query in asked[kind]:
            start = time.perf_counter()
            search(query, TOPK)
            seconds.append(time.perf_counter() - start)
        result[f"{kind}_ms"] = 1e3 * statistics.median(seconds)
        result[f"{kind}_p95_ms"] = 1e3 * statistics.quantiles(seconds, n=20)[-1]
    return result | {"search_mib": peak_mib()}


def measure_recall(library: str, out: Path, queries: Path) -> dict[str, float]:
    search, recalls = OPEN[library](out), []
    for question, gold in json.loads(queries.read_text())["gold"]:
        recalls.append(len(set(search(question, 5)) & set(gold)) / len(gold))
    return {"recall": 100 * statistics.mean(recalls)}


def run(part: str, *arguments: object) -> dict[str, float]:
    """One measurement in a process of its own, on one thread."""
    command = [sys.executable, __file__, "--part", part, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


PARTS: dict[str, Callable[..., dict[str, float]]] = {
    "build": measure_build,
    "search": measure_search,
    "recall": measure_recall,
}


def prepare(data: Path, count: int, folder: Path) -> None:
    """Write real.jsonl (the HotpotQA passages), many.jsonl (recombined) and queries.json."""
    lines = (data / "hotpotqa_300_with_context.jsonl").read_text().splitlines()
    questions = [json.loads(line) for line in lines]
    real = {title: "".join(text) for q in questions for title, text in q["context"]}
    wiki = json.loads((data / "2wiki_corpus_6119.json").read_text())
    sentences = [s for text in real.values() for s in re.split(r"(?<=\.) +", text) if s]
    sentences += [s for p in wiki for s in re.split(r"(?<=\.) +", p["text"]) if s]
    rng = random.Random(0)
    titles = [*real, *(p["title"] for p in wiki)]
    many = {
        f"{rng.choice(titles)} ({n})": " ".join(rng.choices(sentences, k=rng.randint(2, 6)))
        for n in range(count)
    }
    for name, passages in {"real.jsonl": real, "many.jsonl": many}.items():
        with (folder / name).open("w") as file:
            for title, text in passages.items():
                file.write(json.dumps({"title": title, "text": text}) + "\n")
    asked: dict[str, Any] = {
        "titles": rng.sample(list(real), 300),
        "questions": [q["question"] for q in questions],
        "gold": [(q["question"], sorted({t for t, _ in q["supporting_facts"]})) for q in questions],
    }
    (folder / "queries.json").write_text(json.dumps(asked))


def table(data: Path, count: int) -> str:
    """The comparison as a Markdown table."""
    rows = [
        "| library | build s | build MiB | disk MiB | open ms | title query ms (p95)"
        " | question ms (p95) | search MiB (before) | recall@5 % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(data, count, folder)
        queries = folder / "queries.json"
        for library in BUILD:
            large, small = folder / f"{library}-many", folder / f"{library}-real"
            m = run("build", library, folder / "many.jsonl", large)
            m |= run("search", library, large, queries)
            run("build", library, folder / "real.jsonl", small)
            m |= run("recall", library, small, queries)
            rows.append(
                f"| {library} | {m['build_s']:.1f} | {m['build_mib']:.0f} | {m['disk_mib']:.0f}"
                f" | {m['open_ms']:.0f} | {m['titles_ms']:.2f} ({m['titles_p95_ms']:.2f})"
                f" | {m['questions_ms']:.2f} ({m['questions_p95_ms']:.2f})"
                f" | {m['search_mib']:.0f} ({m['idle_mib']:.0f}) | {m['recall']:.1f} |"
            )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="+", help="folder with the real passages")
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part is None:
        print(table(Path(given.data[0]), given.passages))
    else:
        library, *paths = given.data
        print(json.dumps(PARTS[given.part](library, *map(Path, paths))))


if __name__ == "__main__":
    main()
