"""Every faulty component is refused with one sentence, before anything is written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from own_recipe import OPTIM, recipe_of, rl, sentence, status, write, write_files


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("model"))


def rewards(name: str, weight: Any = 1.0) -> dict[str, Any]:
    return {"stages": rl(rewards={name: weight})}


def workflow(*names: str) -> dict[str, Any]:
    return {"evaluation": {"splits": {"heldout": 3}, "workflows": list(names)}}


def stage(name: str) -> dict[str, Any]:
    return {"stages": {"mine": {"type": name, "steps": 1, "optim": OPTIM}}}


def world(name: str) -> dict[str, Any]:
    return {"world": {"name": name}}


BAD: list[tuple[str, Mapping[str, Any], list[str]]] = [
    # modules and names
    ("no module", {"tools": ["own_part:population"]}, ["import of 'own_part' failed", "Module"]),
    ("syntax", {"tools": ["bad_syntax:tool"]}, ["'bad_syntax' failed (SyntaxError:"]),
    ("raises", {"tools": ["bad_import:tool"]}, ["failed (RuntimeError: no licence)"]),
    ("exits", {"tools": ["bad_exit:tool"]}, ["failed (SystemExit: 3)"]),
    ("no name", {"tools": ["own_parts:populaton"]}, ["did you mean 'population'?"]),
    (
        "tool",
        {"tools": ["serch"]},
        [
            "unknown tool 'serch' (did you mean 'search'?): use one of search, python, web_search,"
            " crawl_page, mcp, or"
        ],
    ),
    ("reward", rewards("emm"), ["unknown reward 'emm'", "use one of em,", "did you mean 'em'"]),
    ("dialect", {"dialect": "hermess"}, ["unknown dialect 'hermess'", "did you mean 'hermes'"]),
    ("world", world("atlass"), ["unknown world 'atlass'", "did you mean 'atlas'"]),
    ("workflow", workflow("raag"), ["unknown workflow 'raag'", "did you mean 'rag'"]),
    ("algorithm", {"stages": rl(algorithm="drgrpo")}, ["unknown algorithm 'drgrpo'", "'dr-grpo'?"]),
    ("stage", stage("stf"), ["unknown stage type 'stf'", "did you mean 'sft'"]),
    # shapes
    ("no tool", {"tools": ["bad_parts:NUMBER"]}, ["'bad_parts:NUMBER' is not a tool"]),
    (
        "two tools",
        {"tools": ["own_parts:population", "bad_parts:population"]},
        ["2 tools have the name 'population': give each"],
    ),
    ("no reward", rewards("bad_parts:NUMBER"), ["neither a class nor a function of a group"]),
    (
        "half a reward",
        rewards("bad_parts:SpokenReward"),
        ["lacks the attribute name or one of __call__"],
    ),
    ("async reward", rewards("bad_parts:awaited"), ["neither a class nor a function"]),
    ("unmakeable", rewards("bad_parts:Unmakeable"), ["(ZeroDivisionError: a defect): correct"]),
    ("no dialect", {"dialect": "bad_parts:NUMBER"}, ["is not a dialect: make it a subclass of"]),
    ("half a dialect", {"dialect": "bad_parts:Mute"}, ["incomplete: implement matches_grammar,"]),
    ("no world", world("bad_parts:NUMBER"), ["is not a world: make it a subclass of"]),
    ("half a world", world("bad_parts:HalfWorld"), ["implement demonstrations,", ", datasets."]),
    ("no workflow", workflow("bad_parts:NUMBER"), ["'bad_parts:NUMBER' is not a workflow: write"]),
    ("short workflow", workflow("bad_parts:of_one"), ["write async def of_one(task, policy,"]),
    ("sync workflow", workflow("bad_parts:blocking"), ["write async def blocking(task,"]),
    (
        "no algorithm",
        {"stages": rl(algorithm="bad_parts:NUMBER")},
        ["is not an algorithm: make it a mapping of keys of an rl stage, or a subclass of"],
    ),
    (
        "key of an algorithm",
        {"stages": rl(algorithm="bad_parts:UNKNOWN_KEY")},
        ["'bad_parts:UNKNOWN_KEY' sets 'base_line'", "did you mean 'baseline'?"],
    ),
    ("no stage", stage("bad_parts:NUMBER"), ["is not a stage type: make it a subclass of"]),
    ("function", stage("bad_parts:too_few"), ["is not a stage type: make it a subclass of"]),
    ("no settings", stage("bad_parts:Unset"), ["is incomplete: implement Settings."]),
    ("half a stage", stage("bad_parts:Unfinished"), ["is incomplete: implement create, step."]),
    ("wrong settings", stage("bad_parts:WrongSettings"), ["subclass of fieldcraft.Stage"]),
    # settings
    (
        "setting of a tool",
        {"tools": [{"name": "own_parts:Notes", "page": 1}]},
        ["the tool 'own_parts:Notes' has no setting 'page'; did you mean 'pages'?"],
    ),
    (
        "setting of a reward",
        rewards("own_parts:Brief", {"weight": 1, "word": 1}),
        ["the reward 'own_parts:Brief' has no setting 'word'; did you mean 'words'?"],
    ),
    (
        "wrong setting",
        rewards("own_parts:Brief", {"weight": 1, "words": "few"}),
        ["the setting 'words' of the reward 'own_parts:Brief' is wrong: it must be"],
    ),
    ("no weight", rewards("own_parts:Brief", {"words": 1}), ["'rewards.own_parts:Brief.weight'"]),
    (
        "setting of a function",
        rewards("own_parts:shortest", {"weight": 1, "words": 1}),
        ["is a function, which accepts no settings: remove 'words'"],
    ),
    (
        "setting of a built-in reward",
        rewards("em", {"weight": 1, "words": 1}),
        ["the reward 'em' has no setting 'words'; "],
    ),
    (
        "key of a stage",
        {
            "stages": {
                "mine": {"type": "own_parts:Rejection", "steps": 1, "qestions": 1, "optim": OPTIM}
            }
        },
        ["unknown key 'stages.mine.qestions'; did you mean 'stages.mine.questions'?"],
    ),
    # names in a report, and requirements of a workflow
    ("as a stage", {**workflow("bad_parts:rl"), "stages": rl()}, ["both called 'rl'"]),
    ("as the model", workflow("bad_parts:base"), ["would both be the row 'base'"]),
    (
        "as another",
        workflow("own_parts:ask_first", "bad_parts:ask_first"),
        ["and the workflow 'own_parts:ask_first' would both be the row 'ask_first'"],
    ),
    (
        "none",
        {**workflow("prompted-react"), "tools": []},
        ["'prompted-react' acts, and there are no"],
    ),
    ("no search", workflow("rag"), ["the workflow 'rag' searches, and tools has no search: set"]),
]


@pytest.mark.parametrize(("changes", "parts"), [bad[1:] for bad in BAD], ids=[b[0] for b in BAD])
def test_it_is_one_sentence(
    model: Path,
    changes: Mapping[str, Any],
    parts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "bad_syntax.py").write_text("def tool(:\n")
    (tmp_path / "bad_import.py").write_text("raise RuntimeError('no licence')\n")
    (tmp_path / "bad_exit.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.chdir(tmp_path)
    if "world" in changes:
        changes = {**changes, "tasks": None, "demonstrations": None, "stages": rl()}
    recipe = write(tmp_path / "bad.yaml", recipe_of(model, **changes))
    out = tmp_path / "run"
    for command in (("check", recipe), ("run", recipe, "--out", out)):
        assert status(*command) == 2
        message = sentence(capsys)
        assert [part for part in parts if part not in message] == [], message
    assert not out.exists()
