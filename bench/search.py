"""Compare keyword search of fieldcraft (tantivy) and bm25s at the size of a real corpus.

    python bench/search.py ../shared/data/qa --passages 1000000

Passages are recombined from the sentences of real passages with a fixed seed, and numbered in their
titles. Each library builds in one process and searches in another, on one thread. Builds and
queries are measured in CPU time, which depends less on the load of the machine, and opening in wall
time. The memory of a build is the peak of the process, and the peak without file pages, which the
system can reclaim. Recall is the share of the gold titles of the real HotpotQA questions, with only
the real passages. Finally, `--clients` concurrent clients query the real server from a separate
process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bm25s
import httpx
import numpy as np

from fieldcraft.data.passages import PassageFile, read_corpus, write_passages
from fieldcraft.extensions.search.bm25 import make_passage_terms, make_query_terms
from fieldcraft.extensions.search.dense import select_top_scores
from fieldcraft.extensions.search.index import SearchIndex, build_index

TOPK = 3
EACH = 10  # sequential questions per client
Search = Callable[[str, int], list[str]]  # (query, topk) -> titles


# -- libraries ---------------------------------------------------------------------------------


def build_fieldcraft(corpus: Path, out: Path) -> None:
    build_index(corpus, out)


def open_fieldcraft(out: Path) -> Search:
    index = SearchIndex.load(out)
    return lambda query, topk: [passage.title for passage in index.search([query], topk)[0]]


def build_bm25s(corpus: Path, out: Path) -> None:
    out.mkdir()
    write_passages(read_corpus(corpus), out)
    vocabulary: dict[str, int] = {}
    term_ids = [
        [
            vocabulary.setdefault(term, len(vocabulary))
            for term in make_passage_terms(p.title, p.text)
        ]
        for p in PassageFile(out)
    ]
    bm25 = bm25s.BM25(k1=0.9, b=0.4)
    bm25.index((term_ids, vocabulary), create_empty_token=False, show_progress=False)
    bm25.save(out / "bm25s", show_progress=False)


def open_bm25s(out: Path) -> Search:
    passages = PassageFile(out)
    bm25 = bm25s.BM25.load(out / "bm25s", mmap=True, show_progress=False)
    arrays = bm25.scores  # slices of a plain view cost a tenth of slices of a memmap
    arrays |= {k: v.view(np.ndarray) for k, v in arrays.items() if isinstance(v, np.memmap)}

    def search(query: str, topk: int) -> list[str]:
        scores = bm25.get_scores_from_ids(bm25.get_tokens_ids(make_query_terms(query)))
        found = np.flatnonzero(scores)
        return [
            passages.get_passage(found[place]).title
            for place, _ in select_top_scores(scores[found], topk)
        ]

    return search


BUILD = {"fieldcraft": build_fieldcraft, "bm25s": build_bm25s}
OPEN = {"fieldcraft": open_fieldcraft, "bm25s": open_bm25s}


# -- measurements, each in a separate process ---------------------------------------------------


def memory_mib(entry: str) -> float:
    """Return the peak memory (VmHWM) or the current memory without files (RssAnon), in MiB."""
    [line] = re.findall(rf"^{entry}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    return int(line) / 1024


@contextmanager
def watched() -> Iterator[list[float]]:
    """Record the memory without files every tenth of a second."""
    seen, done = [memory_mib("RssAnon")], threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            seen.append(memory_mib("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield seen
    done.set()
    watcher.join()


def measure_build(library: str, corpus: Path, out: Path) -> dict[str, float]:
    wall, start = time.perf_counter(), time.process_time()
    with watched() as seen:
        BUILD[library](corpus, out)
    disk = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    words = sum(f.stat().st_size for f in out.rglob("*/*") if f.is_file())
    return {
        "build_s": time.process_time() - start,
        "wall_s": time.perf_counter() - wall,
        "build_mib": memory_mib("VmHWM"),
        "build_anonymous_mib": max(seen),
        "disk_mib": disk / 2**20,
        "words_mib": words / 2**20,
    }


def measure_search(library: str, out: Path, queries: Path) -> dict[str, float]:
    asked = json.loads(queries.read_text())
    start = time.perf_counter()
    search = OPEN[library](out)
    result = {"open_ms": 1e3 * (time.perf_counter() - start)}
    for kind in ("titles", "questions"):
        for query in asked[kind]:  # the first access to a page measures the disk
            search(query, TOPK)
        seconds = []
        for query in asked[kind]:
            start = time.process_time()
            search(query, TOPK)
            seconds.append(time.process_time() - start)
        result[f"{kind}_ms"] = 1e3 * statistics.median(seconds)
        result[f"{kind}_p95_ms"] = 1e3 * statistics.quantiles(seconds, n=20)[-1]
    return result | {"search_mib": memory_mib("VmHWM")}


def measure_recall(library: str, out: Path, queries: Path) -> dict[str, float]:
    search, recalls = OPEN[library](out), []
    for question, gold in json.loads(queries.read_text())["gold"]:
        recalls.append(len(set(search(question, 5)) & set(gold)) / len(gold))
    return {"recall": 100 * statistics.mean(recalls)}


def measure_clients(url: str, queries: Path, count: str) -> dict[str, float]:
    questions = json.loads(queries.read_text())["questions"]
    seconds: list[float] = []

    async def ask(number: int) -> None:
        # A shared client with a pool of 150 connections would spend its time searching the pool.
        async with httpx.AsyncClient(timeout=120, verify=False, trust_env=False) as client:
            for n in range(EACH):
                body = {"queries": [questions[(number * EACH + n) % len(questions)]], "topk": TOPK}
                start = time.perf_counter()
                (await client.post(f"{url}/retrieve", json=body)).raise_for_status()
                seconds.append(time.perf_counter() - start)

    async def all_of_them() -> None:
        await asyncio.gather(*map(ask, range(int(count))))

    start = time.perf_counter()
    asyncio.run(all_of_them())
    return {
        "answers": len(seconds),
        "a_second": len(seconds) / (time.perf_counter() - start),
        "p50_ms": 1e3 * statistics.median(seconds),
        "p99_ms": 1e3 * statistics.quantiles(seconds, n=100)[-1],
    }


PARTS: dict[str, Callable[..., dict[str, float]]] = {
    "build": lambda library, *paths: measure_build(library, *map(Path, paths)),
    "search": lambda library, *paths: measure_search(library, *map(Path, paths)),
    "recall": lambda library, *paths: measure_recall(library, *map(Path, paths)),
    "clients": lambda url, queries, count: measure_clients(url, Path(queries), count),
}


def run(part: str, *arguments: object) -> dict[str, float]:
    """Run a measurement in a separate process on one thread."""
    command = [sys.executable, __file__, "--part", part, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def ask_server(index: Path, queries: Path, clients: int) -> dict[str, float]:
    command = [sys.executable, "-m", "fieldcraft", "serve", "search", "--index", str(index)]
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            run("clients", url, queries, clients)  # the first access to a page measures the disk
            return run("clients", url, queries, clients)
        finally:
            server.send_signal(signal.SIGINT)


# -- the comparison ----------------------------------------------------------------------------


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
    many = (
        (f"{rng.choice(titles)} ({n})", " ".join(rng.choices(sentences, k=rng.randint(2, 6))))
        for n in range(count)
    )
    for name, passages in {"real.jsonl": real.items(), "many.jsonl": many}.items():
        with (folder / name).open("w") as file:
            for title, text in passages:
                file.write(json.dumps({"title": title, "text": text}) + "\n")
    asked: dict[str, Any] = {
        "titles": rng.sample(list(real), 300),
        "questions": [q["question"] for q in questions],
        "gold": [(q["question"], sorted({t for t, _ in q["supporting_facts"]})) for q in questions],
    }
    (folder / "queries.json").write_text(json.dumps(asked))


def compare(data: Path, count: int, libraries: list[str], clients: int, folder: Path) -> None:
    """Print the comparison as Markdown tables, each row when it is measured."""
    prepare(data, count, folder)
    queries = folder / "queries.json"
    print(
        "| library | passages | build s (wall) | build MiB (without files) | disk MiB (without"
        " passages) | open ms | title query ms (p95) | question ms (p95) | search MiB"
        " | recall@5 % |\n|---|---|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    for library in libraries:
        large, small = folder / f"{library}-many", folder / f"{library}-real"
        m = run("build", library, folder / "many.jsonl", large)
        m |= run("search", library, large, queries)
        run("build", library, folder / "real.jsonl", small)
        m |= run("recall", library, small, queries)
        print(
            f"| {library} | {count:,} | {m['build_s']:.0f} ({m['wall_s']:.0f})"
            f" | {m['build_mib']:.0f} ({m['build_anonymous_mib']:.0f})"
            f" | {m['disk_mib']:.0f} ({m['words_mib']:.0f}) | {m['open_ms']:.0f}"
            f" | {m['titles_ms']:.2f} ({m['titles_p95_ms']:.2f})"
            f" | {m['questions_ms']:.2f} ({m['questions_p95_ms']:.2f})"
            f" | {m['search_mib']:.0f} | {m['recall']:.1f} |",
            flush=True,
        )
    if "fieldcraft" in libraries:
        m = ask_server(folder / "fieldcraft-many", queries, clients)
        print(
            f"\n{clients} concurrent clients: {m['answers']} answers, {m['a_second']:.0f}/s,"
            f" median {m['p50_ms']:.0f} ms (p99 {m['p99_ms']:.0f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="+", help="folder with the real passages")
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--libraries", nargs="+", choices=BUILD, default=list(BUILD))
    parser.add_argument("--clients", type=int, default=150)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part is not None:
        print(json.dumps(PARTS[given.part](*given.data)))
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(given.data[0]), given.passages, given.libraries, given.clients, Path(folder))


if __name__ == "__main__":
    main()
