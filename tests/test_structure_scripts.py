"""Measures of the structure of a package, and counts of the functions on the way of a question."""

import os
import subprocess
import sys
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from script_modules import ROOT, load_script

PACKAGE = {
    "runs/run.py": "import pkg.a.first\n",
    "runs/__init__.py": "",
    "a/first.py": """
from pkg.b.second import Reader


class Lines(Reader):
    def read(self):
        return []


class MoreLines(Lines):
    pass


class File:
    def write(self): ...


class Socket:
    def __init__(self):
        self.write = print
""",
    "b/second.py": """
from typing import Protocol

from pkg.a import third


class Reader(Protocol):
    def read(self): ...


class Writer(Protocol):
    def write(self): ...


def long_function():
    return [
"""
    + "        0,\n" * 37
    + "    ]\n",
    "a/third.py": """
from functools import cache as model_validator


def hide():
    try:
        pass
    except (OSError, Exception):
        return


def add():
    try:
        pass
    except Exception as error:
        raise ValueError from error


def require_file(path):
    try:
        path.open()
    except OSError:
        return


@model_validator
def validated(values): ...
""",
    "extensions/extra.py": "def f():\n    from pkg.a.third import hide, add\n" + "\n" * 60,
}


@pytest.fixture
def structure() -> ModuleType:
    return load_script("scripts/structure.py")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in PACKAGE.items():
        path = tmp_path / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip("\n"))
    return tmp_path / "pkg"


def test_measures_of_a_small_package(structure: ModuleType, package: Path) -> None:
    assert structure.measure(package).cells == {
        "modules": "6",
        "lines": "161",
        "top-level folders": "4",
        "modules of the kernel": "5",
        "lines of the kernel": "99",
        "modules under 60 lines": "4",
        "modules of at most 110 lines with one importer": "2",
        "protocols and abstract classes": "2",
        "of these with one implementer": "1",
        "functions that only check": "2",
        "functions": "11",
        "functions below 36 lines": "90.9%",
        "lines of a function, 99th percentile": "40",
        "lines of the longest function": "40",
        "import cycles between folders": "1",
        "modules loaded by runs.run": "4",
        "broad handlers that do not re-raise": "1",
    }


def test_what_was_found_is_listed(structure: ModuleType, package: Path) -> None:
    small, single, cycles, handlers = structure.measure(package).found.values()
    assert small == ["pkg.a.first 19 <- pkg.runs.run", "pkg.b.second 53 <- pkg.a.first"]
    assert single == ["Reader <- Lines"]
    assert cycles in (["a -> b -> a"], ["b -> a -> b"])
    assert handlers == ["pkg.a.third, line 7"]


def test_each_folder_is_a_column(
    structure: ModuleType,
    package: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (package / "runs/run.py").unlink()
    monkeypatch.setattr(sys, "argv", ["structure.py", str(package), str(package / "a")])
    structure.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"| measure | {package} | {package / 'a'} |"
    assert lines[2] == "| modules | 5 | 2 |"
    assert "| modules loaded by runs.run |  |  |" in lines
    assert len(lines) == 19


def test_cycles_are_broken_one_by_one(structure: ModuleType) -> None:
    imports = {"p.a.x": {"p.b.x", "p.a.y"}, "p.b.x": {"p.c"}, "p.c": {"p.a.x", "p.b.x"}}
    assert len(structure.find_cycles(imports)) == 2  # a, b, c and b, c
    del imports["p.c"]
    assert structure.find_cycles(imports) == []


@pytest.fixture
def trace_question() -> ModuleType:
    return load_script("scripts/trace_question.py")


def test_counts_of_a_path(trace_question: ModuleType) -> None:
    events = [  # file, index of the caller
        ("runs/run.py", None),  # 0, on the main path
        ("runs/run.py", 0),  # 1, in the file of its caller
        ("train/loop.py", 1),  # 2, on the main path
        ("engine/engine.py", 2),  # 3, on the main path: the first token
        ("engine/engine.py", 3),  # 4, in the file of its caller
        ("types.py", 4),  # 5, leads to no other call
        ("engine/engine.py", 3),  # 6, a return
        ("train/loop.py", 2),  # 7, a return
        ("runs/report.py", 7),  # 8, on the main path
        ("runs/run.py", 8),  # 9, a return that leads to no other call
    ]
    calls = [
        trace_question.Call(index, file, f"f{index}", 1, caller)
        for index, (file, caller) in enumerate(events)
    ]
    assert trace_question.count(calls, token=3) == {
        "calls": 10,
        "calls before the first token": 3,
        "files": 5,
        "top-level folders": 3,
        "returns": 3,
    }
    main_path = trace_question.select_main_path(calls)
    assert [call.index for call in main_path] == [0, 2, 3, 8]
    assert trace_question.count(main_path, token=3) == {
        "calls": 4,
        "calls before the first token": 2,
        "files": 4,
        "top-level folders": 3,
        "returns": 0,
    }


CODE = """
class Task:
    def __init__(self): ...
    def __call__(self): ...
    @property
    def name(self): ...
    @field_validator("name", mode="before")
    @classmethod
    def validated(cls): ...
    @contextmanager
    def opened(self):
        def inner(): ...
"""


def list_codes(code: CodeType) -> list[CodeType]:
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return [code, *(found for each in inner for found in list_codes(each))]


@pytest.mark.parametrize(
    ("file", "counted", "transparent"),
    [
        ("train/task.py", ["__call__", "opened"], ["inner"]),
        ("cli/task.py", [], []),
        ("../other/task.py", [], ["<module>", "Task", "__init__", "__call__", "name"]),
    ],
)
def test_kinds_of_functions(
    trace_question: ModuleType,
    tmp_path: Path,
    file: str,
    counted: list[str],
    transparent: list[str],
) -> None:
    path = (tmp_path / "pkg" / file).resolve()
    path.parent.mkdir(parents=True)
    path.write_text(CODE)
    kinds: dict[str, list[str]] = {"counted": [], "transparent": [], "excluded": []}
    for code in list_codes(compile(CODE, path, "exec")):
        kinds[trace_question.classify(code, tmp_path / "pkg")].append(code.co_name)
    assert kinds["counted"] == counted
    assert kinds["transparent"][:5] == transparent


@pytest.mark.long
def test_the_trace_leads_from_the_start_of_a_run_to_its_report() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/trace_question.py", "--list"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=True,
        capture_output=True,
        text=True,
    )
    table, listed = done.stdout.split("\n\n")
    calls = listed.splitlines()
    before = int(table.partition("first token | ")[2].partition(" ")[0])
    assert f"| calls | {len(calls)} |" in table
    assert calls[0].startswith("* runs/run.py:")
    assert calls[before].endswith(".generate")
    assert any(call.endswith(" write_page") for call in calls)
    folders = {call.split()[-2].partition("/")[0] for call in calls}
    assert {"runs", "train", "environments", "engine", "tools", "rewards", "evaluation"} <= folders
    assert any("optimizer_step" in call for call in calls)


def test_each_extension_is_a_folder_of_its_own(structure: ModuleType) -> None:
    imports = {
        "pkg.run": {"pkg.extensions.web.page"},
        "pkg.extensions.web.page": {"pkg.types", "pkg.extensions.search.index"},
        "pkg.extensions.search.index": {"pkg.types"},
    }
    assert structure.find_cycles(imports) == []
    back = imports | {"pkg.extensions.search.index": {"pkg.extensions.web.page"}}
    assert structure.find_cycles(back) == [
        "extensions.search -> extensions.web -> extensions.search"
    ]


def test_a_folder_without_modules_is_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts/structure.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.endswith("contains no Python module: give the folder of a package\n")
