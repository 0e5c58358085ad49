"""Tests of fieldcraft bench. The comparisons require a checkout; an installed package has none."""

import sys
from pathlib import Path

import pytest

import fieldcraft
from cli_parts import sentence, status
from fieldcraft.cli import bench as bench_command

BENCH = Path(fieldcraft.__file__).parents[2] / "bench"
in_checkout = pytest.mark.skipif(
    not BENCH.exists(),
    reason="the package is installed, without bench/",
)


@in_checkout
def test_an_unknown_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("bench", "speed") == 2
    names = sorted(script.stem for script in BENCH.glob("[!_]*.py"))
    assert len(names) > 20
    assert sentence(capsys) == (f"bench/ has no script 'speed': use one of {', '.join(names)}.")


@in_checkout
def test_bench_names_the_package_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)  # as in an installation without it
    assert status("bench", "search") == 2
    assert "bench/search.py needs the package 'bm25s'" in capsys.readouterr().err


def test_bench_is_only_in_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("bench", "--help") == 0
    assert "Run a script of bench/" in capsys.readouterr().out
    monkeypatch.setattr(bench_command, "__file__", str(tmp_path / "a" / "b" / "c" / "data.py"))
    assert status("bench", "search") == 2
    assert "run it from a checkout" in sentence(capsys)


@in_checkout
def test_bench_scripts_import_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert status("bench", "generate", "--no-such-option") == 2  # of the script, which was imported
    assert "No such option: --no-such-option" in capsys.readouterr().err


@in_checkout
def test_a_script_explains_its_own_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert status("bench", "generate", "--help") == 0
    assert "Usage: generate.py" in capsys.readouterr().out


@in_checkout
def test_a_comparison_of_a_wrong_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.json").touch()
    assert status("bench", "answers", tmp_path / "empty.json") == 2
    assert "empty.json is empty; fix the file." in capsys.readouterr().err
