"""Tests of the commands world, index, serve, bench and recipes."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import fieldcraft
from cli_parts import sentence, status
from encoders import write_bert


def test_world_atlas_is_written_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "world"
    settings = [
        "world.people=30",
        "world.heldout=0.5",
        "world.taught=0.4",
        "evaluation.splits={heldout: 5, known: 2}",
        "tiny_model.layers=2",
    ]
    assert status("world", "atlas", *settings, "--with-model", "--out", out) == 0
    names = ["corpus.jsonl", "evaluation.jsonl", "model", "train.jsonl"]
    assert capsys.readouterr().out.splitlines() == [str(out / name) for name in names]
    corpus = (out / "corpus.jsonl").read_text().splitlines()
    assert len(corpus) == 30 + 6 + 6 + 3  # people, companies, cities, countries
    assert (out / "model" / "tokenizer.json").exists()
    assert status("world", "atlas", "--out", out) == 2
    assert "exists and is not empty" in sentence(capsys)


def test_index_takes_a_hotpotqa_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"context": [["Ada", ["Ada is a person. ", "So is Bo."]], ["Bo", ["Bo too."]]]}
    source = tmp_path / "hotpot.jsonl"
    source.write_text(json.dumps(record))
    assert status("index", source, "--out", tmp_path / "index") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'index'}: 2 passages\n"


def test_index_by_vectors(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra dense")
    encoder = write_bert(tmp_path / "encoder", seed=0)
    for options, ranking in (([], "hybrid"), (["--ranking", "dense", "--hnsw"], "dense")):
        out = tmp_path / ranking
        assert status("index", files["corpus"], "--out", out, "--encoder", encoder, *options) == 0
        assert json.loads((out / "manifest.json").read_text())["ranking"] == ranking
    capsys.readouterr()
    assert status("index", files["corpus"], "--out", tmp_path / "no", "--hnsw") == 2
    assert sentence(capsys).startswith("Search by vectors needs an encoder")


def test_serve_search_answers(files: dict[str, Path], tmp_path: Path) -> None:
    index = tmp_path / "index"
    assert status("index", files["corpus"], "--out", index) == 0
    command = [sys.executable, "-m", "fieldcraft", "serve", "search", "--index", str(index)]
    server = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().split()[-1]
    found = httpx.post(f"{address}/retrieve", json={"queries": ["film 2"], "topk": 1}).json()
    server.send_signal(signal.SIGINT)
    server.communicate(timeout=300)
    assert server.returncode == 0
    assert found["result"][0][0]["contents"] == '"Film 2"\nDirector 2 made it.'


def test_recipes_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("recipes") == 0
    assert re.search(r"^hotpotqa +SFT, then RL ", capsys.readouterr().out, re.MULTILINE)
    assert status("--version") == 0
    assert capsys.readouterr().out == f"fieldcraft {fieldcraft.__version__}\n"
