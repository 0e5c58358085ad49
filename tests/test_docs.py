"""Commands in README.md and docs/ run, and the files that they name exist.

The blocks of a document are run in their order, in one folder with small versions of the files that
a user provides. A block of Python or YAML whose first line is a comment with a file's name is
written to that file. Other blocks of YAML are fragments of recipes, whose keys are checked. Long
commands and programs are shortened by SHORTER and SMALLER; nothing else is changed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import torch
import yaml

from checkpoints import write_tiny_checkpoint
from families import FAMILIES
from fieldcraft.cli import main as cli
from fieldcraft.config.recipe import Recipe
from fieldcraft.data.steps_io import ContrastivePair, write_pairs
from fieldcraft.recipes.loading import load_recipe, parse_recipe
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.types import Answer, Task, Thought, ToolCall
from harbor_folders import write_task
from ports import reserved_port

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

TINY = ["world.people=40", "world.variants=2", "tiny_model.layers=2", "tiny_model.width=32"]
TINY += ["tiny_model.heads=2", "budget.max_turn_tokens=12"]
TINY += [f"evaluation.splits.{split}=4" for split in ("heldout", "train", "known")]
STEPS = {
    "sft": ["steps=1", "epochs=null", "max_examples=4", "batch_size=2"],
    "rl": ["steps=1", "questions_per_step=1", "group_size=2"],
}


def shrink(kind: str, *stages: str) -> list[str]:
    return [f"stages.{stage}.{key}" for stage in stages for key in STEPS[kind]]


CODE = ["tiny_model.layers=2", "tiny_model.width=32", "tiny_model.heads=2"]
CODE += ["budget.max_turn_tokens=12"]
CODE += [f"evaluation.splits.{n}=2" for n in ("heldout", "mixed", "known", "traps", "four_steps")]
CODE += [*("world.notes=40", "world.heldout_notes=40"), *shrink("sft", "base", "sft")]
SHORTER = {  # start of a command -> arguments appended to it
    "fieldcraft run autocoa-mini": [
        *TINY,
        *shrink("sft", "base", "sft1", "sft2", "sft3"),
        *shrink("rl", "rl1", "rl2"),
    ],
    "fieldcraft run distil-mini": [
        *(*TINY, "evaluation.periodic.questions=2"),
        *shrink("sft", "base", "sft1", "sft"),
        *shrink("rl", "rl", "distil", "distil-full"),
    ],
    "fieldcraft run autocoa-table": [
        *(*TINY, "seeds=[0]"),
        *shrink("sft", "base", "sft1", "sft2", "sft2-alone", "sft3"),
        *shrink("rl", "rl2-alone", "rl1", "rl1-longer", "rl2", "rl2-real"),
    ],
    "fieldcraft run simulator-table": [
        *(*TINY, "seeds=[0]"),
        *shrink("sft", "base", "sft1", "sft2", "sft3", "sim-mid", "sim-long"),
        *shrink("rl", "rl1-own", "rl1-mid", "rl1-long", "rl1-real"),
    ],
    "fieldcraft run fold-mini": [
        *(*CODE[:3], "evaluation.splits.short=2"),
        *("evaluation.splits.heldout=2", *shrink("sft", "sft"), *shrink("rl", "rl")),
    ],
    "fieldcraft run code-mini": [*CODE, *shrink("rl", "rl")],
    "fieldcraft run otc-code-mini": [*CODE, *shrink("rl", "rl", "otc")],
    "fieldcraft run code-table": [
        *(*CODE, "seeds=[0]"),
        *shrink("rl", "rl", "void", "resampled", "repair", "otc", "otc-floor"),
    ],
    "fieldcraft run unseen-code-mini": [*CODE[:5], CODE[6], *CODE[9:]],
    "fieldcraft run unseen-search-mini": [*TINY[:-2], TINY[-1], *shrink("sft", "base", "sft")],
    "fieldcraft run generalise-mini": [
        *CODE[:4],
        *("world.search.people=40", "world.search.variants=2", "evaluation.splits.code=2"),
        *("world.code.notes=40", "world.code.heldout_notes=40", "evaluation.splits.search=2"),
        *shrink("sft", "base", "code", "search", "code-names", "search-names"),
    ],
    "fieldcraft run my-names.yaml": ["budget.max_turn_tokens=12", *shrink("rl", "rl")],
    "fieldcraft run my-team.yaml": ["budget.max_turn_tokens=12"],
    "fieldcraft run my-agent.yaml": ["budget.max_turn_tokens=12", *shrink("rl", "rl")],
    "fieldcraft run my-game.yaml": ["evaluation.splits.heldout=1", *shrink("rl", "rl")],
    "fieldcraft run my-site.yaml": [*TINY[:-2], *shrink("sft", "base", "sft")],
    "fieldcraft run my-selection.yaml": [
        *(*TINY, *shrink("sft", "base", "sft"), *shrink("rl", "rl")),
        *("select.questions=4", "select.closed_book_samples=2", "select.solver_rollouts=2"),
    ],
    "fieldcraft run afm-mini": [
        *(*TINY, *shrink("sft", "base", "sft"), *shrink("rl", "rl"), "stages.sft.max_examples=40"),
        *("stages.rl.group_filter=none", "select.questions=8", "select.closed_book_samples=2"),
        "select.max_closed_book_accuracy=1",
    ],
    "fieldcraft run afm-select-web": [
        *("budget.max_turn_tokens=12", "budget.max_context_tokens=2048", "dialect=afm-mhqa"),
        "select.closed_book_samples=2",
    ],
    "fieldcraft run my-cities.yaml": [
        *("budget.max_turn_tokens=12", "budget.max_context_tokens=2048", "evaluation.workflows=[]"),
        *shrink("rl", "rl"),
    ],
    "fieldcraft run afm-code-mini": [
        *(*CODE[:5], *CODE[9:], *shrink("rl", "rl"), "stages.sft.max_examples=40"),
        *("stages.rl.group_filter=none", "select.questions=4", "select.solver_rollouts=2"),
    ],
    "fieldcraft run smoke": [*TINY, *shrink("sft", "base", "sft2"), *shrink("rl", "rl2")],
    "fieldcraft check nq": ["stages.sft.batch_size=1", "stages.sft-longer.batch_size=1"],
    "fieldcraft run hotpotqa": [
        *("evaluation.splits.heldout=1", "budget.max_turn_tokens=12"),
        *shrink("sft", "sft"),
        *shrink("rl", "rl"),
    ],
}
REAL = ["budget.max_turn_tokens=12", "budget.max_context_tokens=2048"]
REAL += ["evaluation.splits.heldout=1"]
REAL += [*shrink("sft", "sft1", "sft2", "sft3"), *shrink("rl", "rl1", "rl2")]
SHORTER |= {f"fieldcraft {word} autocoa-1.5b": REAL for word in ("check", "run")}
for own in ("search-r1", "search-r1-grpo", "otc-search", "otc-search-7b"):
    SHORTER[f"fieldcraft run {own} "] = [*REAL[:3], *shrink("rl", "rl")]
for real in ("smollm2", "smollm2-code", "smollm2-table"):
    SHORTER[f"fieldcraft check {real} "] = ["budget.max_context_tokens=2048"]
for checked in ("torl", "my-mcp.yaml", "my-web.yaml"):
    SHORTER[f"fieldcraft check {checked}"] = REAL[:2]
SHORTER["fieldcraft run my-parts.yaml"] = [
    *("budget.max_turn_tokens=12", *shrink("sft", "sft"), *shrink("rl", "rl")),
]
SMALLER = {
    "steps=200, questions_per_step=32, group_size=8": (
        "steps=1, questions_per_step=1, group_size=2"
    ),
    'fc.load("my-model", ': 'fc.load("my-model", budget={"max_turn_tokens": 12}, ',
}
SLOW = {  # complete recipes, each as a small run, take a while
    *("afm.md", "algorithms.md", "autocoa.md", "extending.md", "first-hour.md", "many-gpus.md"),
    *("otc.md", "runs.md", "serving.md", "tools.md", "worlds.md", "your-environment.md"),
    "your-model.md",
}
LONG = {"README.md", "your-data.md", "your-tool.md", "lab-notes/demo.md"}
NOT_RUN = ("fieldcraft bench ", "fieldcraft agreement ")  # minutes; data or a model of the user


def name_of(document: Path) -> str:
    """Return the test id: the path below docs/, or the file name."""
    return document.relative_to(ROOT).as_posix().removeprefix("docs/")


def blocks(document: Path) -> list[tuple[str, str]]:
    """Return (language, text) of every fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", document.read_text("utf-8"), re.DOTALL | re.M)


BASE = {"name": "part", "model": "my-model", "tasks": "questions.jsonl", "corpus": "corpus.jsonl"}
STAGE = {"type": "rl", "steps": 1, "optim": {"lr": 1e-6}}


def check_keys(text):
    """Check that all keys and values of a recipe fragment, or of a stage by its name, are valid in
    an otherwise complete recipe."""
    part = yaml.safe_load(text)
    if not part.keys() & Recipe.model_fields.keys():
        part = {"stages": part}
    stages = part.get("stages", {"rl": {}})
    whole = {
        name: {**STAGE, **stage, "optim": {**STAGE["optim"], **stage.get("optim", {})}}
        for name, stage in stages.items()
    }
    before = {name: STAGE for stage in whole.values() for name in stages_named_in(stage)}
    if "teacher" in part:  # only a run that collects has one
        whole, part["collect"] = {}, {"questions": 2}
    parse_recipe({**BASE, **part, "stages": before | whole})


def stages_named_in(stage):
    named = (
        stage.get("start_from"),
        stage.get("simulator_stage"),
        stage.get("teacher", {}).get("stage"),
    )
    return [name for name in named if name is not None]


def commands(text: str) -> list[str]:
    """Return the lines that call fieldcraft; `make demo` is expanded as in the Makefile."""
    demo = re.search(r"^demo:.*\n\t\.venv/bin/(.*)", (ROOT / "Makefile").read_text("utf-8"), re.M)
    lines = [re.sub(r"^make demo\b.*", demo[1], line) for line in text.splitlines()]
    return [line for line in lines if line.startswith("fieldcraft ")]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Provide the files that a user provides: a model, questions, a corpus and demonstrations."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    write_tiny_checkpoint(Path("my-model"), "qwen2")
    towns = {"Ada Lind": "Northport", "Bo Berg": "Southport", "Cy Dahl": "Eastport"}
    questions = [(f"Where was {name} born?", name, town) for name, town in towns.items()]
    passages = [{"title": n, "text": f"{n} was born in {town}."} for n, town in towns.items()]
    demonstrations = [
        {
            "question": question,
            "answer": town,
            "gen_text_store": f"I must search. <|begin_of_query|> {name} <|end_of_query|>\n\n"
            f'<|begin_of_documents|>\n(1)"Title: {name} Text: {name} was born in {town}."\n'
            f"<|end_of_documents|>\n\nSo it is {town}.</think>\n\n<answer>{town}</answer>",
        }
        for question, name, town in questions * 2
    ]
    pairs = [
        ContrastivePair(
            Task(str(i), question, (town,)),
            (Thought("Hm."),),
            (ToolCall("search", {"query": name}),),
            (Answer("Rome"),),
        )
        for i, (question, name, town) in enumerate(questions)
    ]
    write_pairs(Path("pairs.jsonl"), pairs)
    tasks = [{"question": q, "golden_answers": [town]} for q, _, town in questions]
    write_lines("questions.jsonl", tasks)
    for name, question in {"nq": "Where was Di Eng born?", "hotpot": "Who is Di Eng?"}.items():
        write_lines(f"{name}.jsonl", [{"question": question, "answer": "Westport"}])
    write_lines("corpus.jsonl", passages)
    write_lines("demonstrations.jsonl", demonstrations)
    write_task(Path("my-tasks/first"))
    write_task(Path("my-tasks/second"))
    return tmp_path


@pytest.fixture(autouse=True)
def no_module_stays():
    """Remove the modules of one document before the next."""
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        if name.startswith("my_"):
            del sys.modules[name]


def write_lines(name, records):
    Path(name).write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")


class Terminal:
    """Terminal that runs command lines as a user would; servers run in the background."""

    def __init__(self, port):
        self.servers = []
        self.port = port

    def type(self, line):
        if line.startswith(NOT_RUN):
            return
        arguments = shlex.split(line.replace("8000", str(self.port)))[1:]
        for begin, added in SHORTER.items():
            arguments += added if line.startswith(begin) else []
        if arguments[0] == "studio":
            arguments += ["--port", str(self.port)]
        if arguments[0] in ("serve", "studio") or "--serve" in arguments:
            self.serve(arguments)
            return
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        assert end.value.code in (0, None), line

    def serve(self, arguments):
        """Start a server, after stopping the previous one: they use the same port."""
        self.close()
        self.servers.append(subprocess.Popen([sys.executable, "-m", "fieldcraft", *arguments]))
        for _ in range(900):
            try:
                httpx.get(f"http://127.0.0.1:{self.port}/health").raise_for_status()
                return
            except httpx.HTTPError:
                assert self.servers[-1].poll() is None, arguments
                time.sleep(0.1)
        raise AssertionError(f"no answer from {arguments}")

    def close(self):
        while self.servers:
            server = self.servers.pop()
            server.terminate()
            server.wait()


@pytest.fixture
def terminal():
    threads = torch.get_num_threads()
    with reserved_port() as port:
        opened = Terminal(port)
        yield opened
        opened.close()
    torch.set_num_threads(threads)  # a run sets the fastest options


def marks_of(document: Path) -> list[pytest.MarkDecorator]:
    name, marks = name_of(document), {"slow": SLOW, "long": LONG}
    return [getattr(pytest.mark, mark) for mark, names in marks.items() if name in names]


@pytest.mark.parametrize(
    "document",
    [pytest.param(d, marks=marks_of(d)) for d in DOCUMENTS if blocks(d)],
    ids=name_of,
)
def test_what_a_document_tells_to_type_works(document, folder, terminal):
    names: dict[str, object] = {}
    for language, text in blocks(document):
        if language == "bash":
            for line in commands(text):
                terminal.type(line)
        elif file := re.match(r"# ([\w.-]+\.(?:py|yaml))\n", text):
            Path(file[1]).write_text(text, "utf-8")
        elif language == "yaml":
            check_keys(text)
        elif language == "python":
            text = text.replace("localhost:8000", f"127.0.0.1:{terminal.port}")
            run_program(text, names)


def run_program(program, names):
    for long, short in SMALLER.items():
        program = program.replace(long, short)
    exec(program, names)


@pytest.mark.parametrize("family", ["smollm2", "gemma 3", "mistral"])
def test_the_programs_of_the_readme_run_with_models_that_know_no_tools(folder, family):
    names = {}
    write_tiny_checkpoint(Path("my-model"), "llama", tokenizer=FAMILIES[family].tokenizer())
    for _, text in (block for block in blocks(ROOT / "README.md") if block[0] == "python"):
        if file := re.match(r"# ([\w.-]+\.py)\n", text):
            Path(file[1]).write_text(text, "utf-8")
        else:
            run_program(text, names)
    assert names["agent"].recipe.dialect == "hermes"


def test_the_readme_is_short_and_its_first_block_is_the_two_commands():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150
    language, text = blocks(ROOT / "README.md")[0]
    assert language == "bash"
    typed = [line.split()[:2] for line in text.splitlines()]
    assert typed == [["make", "demo"], ["make", "test"]]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert all(re.search(rf"^{target}:", makefile, re.M) for _, target in typed)


def test_every_command_is_shown():
    typed = [text for language, text in blocks(ROOT / "README.md") if language == "bash"]
    documented = {line.split()[1] for text in typed for line in commands(text)}
    groups = {group.name for group in cli.app.registered_groups}
    listed = [command for command in cli.app.registered_commands if not command.hidden]
    single = {command.name or command.callback.__name__ for command in listed}
    assert documented == groups | single


def test_the_question_of_the_readme_is_one_that_the_demo_is_tested_on():
    inputs = make_data_source(load_recipe("autocoa-mini", []))
    questions = {t.question for t in inputs.evaluation_tasks() if t.meta["split"] == "heldout"}
    asked = re.search(
        r'^fieldcraft ask .*"(.*)"$', (ROOT / "README.md").read_text("utf-8"), re.MULTILINE
    )
    assert asked[1] in questions


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_lead_somewhere(document):
    text = re.sub(r"<!--.*?-->", "", document.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert "://" in target or (document.parent / target).exists(), target


def test_pages_that_the_code_names_are_there():
    named = set()
    for folder in ("src", "tests", "scripts", "bench", "deploy", ".github"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml", ".yml", ".sh"):
                named |= {*re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text("utf-8"))}
    assert "docs/lab-notes/architectures.md" in named
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []


def test_every_list_of_documents_names_pages_that_are_there():
    assert {*SLOW, *LONG} <= {name_of(document) for document in DOCUMENTS}
