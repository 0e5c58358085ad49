"""The table of the papers' elements names existing modules and recipes."""

import re
from pathlib import Path

import pytest

import fieldcraft

ROOT = Path(__file__).parent.parent
PACKAGE = Path(fieldcraft.__file__).parent
RECIPES = {path.stem for path in (PACKAGE / "recipes").glob("*.yaml")}
QUOTED = re.compile(r"`([^`]+)`")


def rows() -> list[list[str]]:
    """Return the cells of each row that has an element."""
    lines = (ROOT / "docs/papers.md").read_text().splitlines()
    table = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    found = [[cell.strip() for cell in cells] for cells in table]
    return [cells for cells in found if len(cells) == 4 and cells[0] not in ("element", "---")]


def test_a_row_is_read() -> None:
    assert len(rows()) > 130


@pytest.mark.parametrize("cells", rows(), ids=lambda cells: cells[0][:60])
def test_modules_and_recipes_of_an_element_are_there(cells: list[str]) -> None:
    _, modules, recipes, _ = cells
    for path in QUOTED.findall(modules):
        assert not path.endswith(".py") or (PACKAGE / path).exists(), path
    for named in QUOTED.findall(re.sub(r"\(.*?\)", "", recipes)):  # one of its keys or stages
        if re.fullmatch(r"[a-z]+(-[a-z0-9.]+)+( .*)?", named):
            assert named.split()[0] in RECIPES, named
