"""The data card: what a set of data went through, as `card.json` and `card.html` beside it."""

from __future__ import annotations

from pathlib import Path

from fieldcraft.data.funnel import Card
from fieldcraft.evals.report import inlined, page_environment
from fieldcraft.records.files import write_json, write_text


def write_card(card: Card, folder: Path) -> None:
    """Write `card.json` and `card.html`, one file without network access, into a folder."""
    write_json(folder / "card.json", card.record())
    environment = page_environment()
    columns = list(dict.fromkeys(name for row in card.figures.values() for name in row))
    page = environment.get_template("card.html.j2").render(
        card=card, columns=columns, **inlined(environment, ("report.css",), ())
    )
    write_text(folder / "card.html", [page])
