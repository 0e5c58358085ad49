"""The notebooks of examples/ run, offline, and are stored without outputs."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a copy of the examples, and folders for the kernel's own files."""
    pytest.importorskip("nbclient", reason="the extra notebook is not installed")
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))


def execute(notebook: Path) -> list[Any]:
    """Run a notebook in its folder and return its code cells. A failing cell raises its error."""
    import nbclient
    import nbformat

    book = nbformat.read(notebook, as_version=4)
    client = nbclient.NotebookClient(
        book, timeout=900, resources={"metadata": {"path": str(notebook.parent)}}
    )
    client.execute()
    return [cell for cell in book.cells if cell.cell_type == "code"]


def pages(cell: Any) -> list[str]:
    """Return the HTML outputs of a cell."""
    data = [output.get("data", {}) for output in cell.outputs]
    return [bundle["text/html"] for bundle in data if "text/html" in bundle]


def find_cell(cells: list[Any], text: str) -> Any:
    [found] = [cell for cell in cells if text in cell.source]
    return found


def require_live_display(cell: Any) -> str:
    """Return the only output of a training, with finished bars and curves."""
    assert len(cell.outputs) == 1, cell.outputs
    [page] = pages(cell)
    bars = re.findall(r'<progress value="(\d+)" max="(\d+)">', page)
    assert bars
    assert [done for done, total in bars if done != total] == []
    assert "<polyline" in page
    assert len(page) < 100_000
    return page


@pytest.mark.long
def test_the_first_hour_teaches_a_tool(folder: Path) -> None:
    cells = execute(folder / "1-first-hour.ipynb")
    page = require_live_display(find_cell(cells, "agent.train("))
    assert "<title>Exact match</title>" in page
    report = json.loads((folder / "runs/first-hour/run/report.json").read_text("utf-8"))
    trained = report["evals"]["rl"]
    assert report["evals"]["base"]["calls_mean"] == 0
    assert trained["calls_mean"] > 0.9
    assert trained["em"] > 0.3
    [shown] = pages(find_cell(cells, "trained.report"))
    assert f"{trained['em']:.3f} [" in shown
    [asked] = pages(find_cell(cells, "city = cities.CITIES[-1]"))
    assert "<small>action population</small>" in asked


@pytest.mark.long
def test_an_own_tool_is_trained_in_the_loop_of_the_kernel(folder: Path) -> None:
    cells = execute(folder / "2-own-tool.ipynb")
    require_live_display(find_cell(cells, "await agent.atrain("))
    [page] = pages(find_cell(cells, "trained.evaluate(tasks)"))
    assert "<table>" in page


@pytest.mark.long
def test_a_rollout_is_branched(folder: Path) -> None:
    cells = execute(folder / "3-look-and-branch.ipynb")
    [values] = pages(find_cell(cells, "make_values_table(\n"))
    assert "of 16" in values
    [branch] = pages(find_cell(cells, "make_branch_table(branch)"))
    assert "other observation" in branch
    [edited] = pages(find_cell(cells, "branch.edited[0]"))
    assert "1234" in edited


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(notebook: Path) -> None:
    book = json.loads(notebook.read_text("utf-8"))
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"]] == []
    assert notebook.stat().st_size < 20_000


def test_there_are_three_notebooks() -> None:
    assert [path.stem[0] for path in NOTEBOOKS] == ["1", "2", "3"]
