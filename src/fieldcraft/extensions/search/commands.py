"""The commands `fieldcraft index` and `fieldcraft serve search`."""

from __future__ import annotations

import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer

from fieldcraft.cli.app import (
    AllowOption,
    HostOption,
    MaxLeftOutOption,
    OutOption,
    PortOption,
    advise_options,
    announce_imports,
    app,
    serve_app,
)
from fieldcraft.records.files import require_writable
from fieldcraft.terminal.console import print_line
from fieldcraft.tools.addresses import require_free_address

_PASSAGES_ADVICE = dict.fromkeys(
    ("tasks", "demonstrations", "pairs", "relevance"),
    "give a file of passages, or of questions with their passages",
)


@app.command("index")
def index_corpus(
    corpus: Annotated[Path, typer.Argument(help="File of passages, of HotpotQA or of MuSiQue.")],
    out: OutOption,
    encoder: Annotated[
        str | None,
        typer.Option(help="Search by vectors of this model, a folder or a name on the hub."),
    ] = None,
    ranking: Annotated[
        Literal["bm25", "dense", "hybrid"] | None,
        typer.Option(help="Ranking. Default: hybrid with an encoder, bm25 without."),
    ] = None,
    hnsw: Annotated[
        bool,
        typer.Option(
            "--hnsw", help="Build an HNSW graph of the vectors, for millions of passages."
        ),
    ] = False,
    max_left_out: MaxLeftOutOption = 0.1,
) -> None:
    """Build a search index: BM25, vectors of an encoder, or both."""
    from fieldcraft.data.corpora import CorpusFile
    from fieldcraft.extensions.search.index import build_index

    require_writable(out)
    # An encoder requires torch.
    with tempfile.TemporaryDirectory() as draft, announce_imports() if encoder else nullcontext():
        source = CorpusFile(corpus, max_left_out)
        with advise_options(**_PASSAGES_ADVICE):
            warnings = source.warnings()
        for line in warnings:
            print_line(line)
        passages = source.ensure_passages(Path(draft, "corpus.jsonl"))
        index = build_index(passages, out, ranking=ranking, encoder=encoder, approximate=hnsw)
    print_line(f"{out}: {len(index)} passages")


@serve_app.command("search")
def serve_index(
    index: Annotated[Path, typer.Option(help="Folder written by 'fieldcraft index'.")],
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    allow: AllowOption = None,
) -> None:
    """Serve a search index with the interfaces of Search-R1 and AutoCoA: POST /retrieve."""
    from fieldcraft.extensions.search.index import require_trusted_index
    from fieldcraft.extensions.search.server import serve_search

    require_trusted_index(index)
    require_free_address(host, port)

    if (index / "manifest.json").exists():  # slow with an encoder
        print_line(f"Opening {index} ...", file=sys.stderr)
    serve_search(index, host, port)
