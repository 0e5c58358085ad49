"""Imports go downward only, and light modules stay light."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from syntax_trees import tree_of

PACKAGE = Path(__file__).parents[1] / "src" / "fieldcraft"
# From low to high: a module may import from its own entry and from earlier entries.
LAYERS = (
    *("version", "sampling", "types", "concurrency", "config", "records", "terminal"),
    *("hub", "recipes", "dialects", "tools", "engine", "rewards", "environments"),
    *("data", "train", "evaluation"),
    *("extensions.math", "extensions.mcp", "extensions.sandbox", "extensions.vllm"),
    *("extensions.external_envs", "runs", "__init__", "cli"),
    *("extensions.cluster", "extensions.trackers", "extensions.search", "extensions.curation"),
    *("extensions.web", "extensions.families", "extensions.methods", "extensions.formats"),
    "extensions.worlds",
    *("extensions.planning", "extensions.serving", "extensions.studio", "extensions"),
    "__main__",
)
EQUALITY = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
HEAVY = {"torch", "transformers", "safetensors"}
MAY_BE_HEAVY = {
    *("engine", "train", "runs"),
    *("extensions.cluster", "extensions.vllm"),
}
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in PACKAGE.rglob("*.py")
}


def imports(tree: ast.AST) -> Iterator[str]:
    """Return the full names of all imports in a tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(name: str) -> str:
    """Return the entry of LAYERS that contains a module, given as `data.sources`. Commands of
    extensions are above all, because they use the command line."""
    parts = name.split(".")
    if parts[0] == "extensions" and parts[-1] == "commands":
        return "extensions"
    return ".".join(parts[:2]) if parts[0] == "extensions" and len(parts) > 2 else parts[0]


def own(name: str) -> str | None:
    """Return the package's module of an imported name; None for other packages."""
    head, _, rest = name.partition(".")
    if head != "fieldcraft":
        return None
    folder = rest.partition(".")[0]
    is_module = rest and ((PACKAGE / folder).is_dir() or folder in FILES)
    return rest if is_module else "__init__"  # `from fieldcraft import __version__`


def test_every_module_has_its_place() -> None:
    assert {layer(name) for name in FILES} <= set(LAYERS)


def test_imports_go_downward() -> None:
    upward = [
        f"{name} imports {target}"
        for name, path in FILES.items()
        for target in map(own, imports(tree_of(path)))
        if target and LAYERS.index(layer(target)) > LAYERS.index(layer(name))
    ]
    assert upward == []


def test_the_kernel_imports_no_extension() -> None:
    """Extensions enter a run by name, as installed packages do."""
    found = [
        f"{name} imports {target}"
        for name, path in FILES.items()
        if not name.startswith("extensions") and name != "__main__"
        for target in filter(None, map(own, imports(tree_of(path))))
        if target.startswith("extensions.")
    ]
    assert found == []


def test_each_extension_has_a_short_readme() -> None:
    folders = [p.parent for p in (PACKAGE / "extensions").glob("*/__init__.py")]
    lines = {p.name: (p / "README.md").read_text("utf-8").count("\n") for p in folders}
    assert len(lines) > 10
    assert {name: count for name, count in lines.items() if not 3 <= count <= 12} == {}


def test_no_import_of_the_package_hides_in_a_function() -> None:
    """Only commands delay heavy imports."""
    hidden = [
        f"{name}.{function.name} imports {target}"
        for name, path in FILES.items()
        if layer(name) != "cli" and not name.endswith(".commands")
        for function in ast.walk(tree_of(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for target in filter(own, imports(function))
    ]
    assert hidden == []


def test_what_runs_no_model_does_not_import_one() -> None:
    heavy = [
        f"{name} imports {target}"
        for name, path in FILES.items()
        if layer(name) not in MAY_BE_HEAVY
        for target in imports(tree_of(path))
        if target.split(".")[0] in HEAVY
    ]
    assert heavy == []


def test_no_module_draws_charts_by_itself() -> None:
    """The page draws them; only scripts for the pictures of docs/ need a library."""
    drawing = [
        name
        for name, path in FILES.items()
        if any(target.split(".")[0] == "matplotlib" for target in imports(tree_of(path)))
    ]
    assert drawing == []


def test_light_modules_load_no_heavy_library() -> None:
    """In a new process neither `import fieldcraft` nor the command line loads torch or numpy, and a
    rollout over a remote engine works without torch."""
    program = """
import sys
def loaded(*names): return [name for name in names if name in sys.modules]
import fieldcraft, fieldcraft.types, fieldcraft.config.recipe
assert not loaded("torch", "transformers", "numpy", "tantivy"), sys.modules.keys()
assert fieldcraft.config.recipe.EngineConfig(name="vllm").features.kv_cache_gb
import fieldcraft.cli
assert not loaded("torch", "transformers", "tantivy", "uvicorn", "starlette"), sys.modules.keys()
import fieldcraft.extensions.search.workflows, fieldcraft.extensions.worlds.atlas.curriculum
import fieldcraft.rewards.rubric
assert not loaded("torch", "transformers"), sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_engines_are_told_apart_by_their_features() -> None:
    """A module asks what an engine can do, not which one it is. The exception chooses settings."""
    names = {"LOCAL_ENGINE", "VLLM_ENGINE", "LocalEngine", "VllmEngine"}
    found: set[str] = set()
    for name, path in FILES.items():
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.Compare() | ast.Call(func=ast.Name(id="isinstance")):
                    if names & {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}:
                        found.add(name)
    assert found == {"runs.engines"}


def test_only_rewards_compare_answers() -> None:
    """A question has a single verdict. The exceptions compare accepted answers, or texts of
    observations."""
    comparing = {"exact_match", "f1", "cover_em", "normalise_or_raw", "normalise"}
    found: set[str] = set()
    for name, path in FILES.items():
        if layer(name) in {"rewards", "extensions.math"}:
            continue
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.ImportFrom(module="fieldcraft.rewards.answers", names=names):
                    if comparing & {alias.name for alias in names}:
                        found.add(name)
                case ast.Compare(ops=ops) if any(isinstance(op, EQUALITY) for op in ops):
                    attributes = (n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute))
                    if {"answer", "answers"} & {*attributes}:
                        found.add(name)
    assert found == {
        "data.decontamination",
        "data.gold_answers",
        "evaluation.fidelity",
        "extensions.curation.builtin_filters",
        "extensions.curation.evidence",
        "extensions.curation.question_generators",
        "runs.examples",
    }


def test_files_are_short() -> None:
    """A file of more than 400 lines has more than one subject."""
    root = PACKAGE.parents[1]
    folders = ("src", "tests", "bench", "scripts")
    kinds = (".py", ".j2", ".css", ".js", ".yaml")
    found = [p for folder in folders for p in (root / folder).rglob("*") if p.suffix in kinds]
    files = [p for p in found if "vendor" not in p.parts]  # files of other projects
    lines = {str(p.relative_to(root)): p.read_text("utf-8").count("\n") for p in files}
    assert len(lines) > 200
    assert {name: count for name, count in lines.items() if count > 400} == {}


def test_test_files_have_names_of_their_own() -> None:
    """Python treats two files of one name as the same module, and importing the second one
    fails."""
    names = Counter(file.name for file in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
