"""The tables of the papers' elements name existing modules and recipes."""

import re
from pathlib import Path

import pytest

import fieldcraft

ROOT = Path(__file__).parent.parent
PACKAGE = Path(fieldcraft.__file__).parent
RECIPES = {path.stem for path in (PACKAGE / "recipes").glob("*.yaml")}
PAGES = ("autocoa.md", "otc.md", "afm.md")
HEADER = "| element | module | recipe | section and evidence |"
QUOTED = re.compile(r"`([^`]+)`")


def rows() -> list[list[str]]:
    """Return the cells of each row that has an element."""
    found = []
    for page in PAGES:
        tables = (ROOT / "docs" / page).read_text().split(f"\n{HEADER}\n")[1:]
        assert len(tables) == 1, page
        table = tables[0].split("\n\n")[0].splitlines()[1:]  # without the line below the header
        found += [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return found


def test_a_row_is_read() -> None:
    assert len(rows()) >= 166


@pytest.mark.parametrize("cells", rows(), ids=lambda cells: cells[0][:60])
def test_modules_and_recipes_of_an_element_are_there(cells: list[str]) -> None:
    _, modules, recipes, _ = cells
    for path in QUOTED.findall(modules):
        assert not path.endswith(".py") or (PACKAGE / path).exists(), path
    for named in QUOTED.findall(re.sub(r"\(.*?\)", "", recipes)):  # one of its keys or stages
        if re.fullmatch(r"[a-z]+(-[a-z0-9.]+)+( .*)?", named):
            assert named.split()[0] in RECIPES, named
