"""Data card: the processing steps of a data set, as `card.json` and `card.html` next to it."""

from __future__ import annotations

from pathlib import Path

from fieldcraft.data.funnel import DataCard
from fieldcraft.evaluation.report import inline_assets, make_page_environment
from fieldcraft.records.files import write_json, write_text


def write_data_card(card: DataCard, folder: Path) -> None:
    """Write `card.json` and `card.html`, one file without network access, into a folder."""
    write_json(folder / "card.json", card.to_record())
    environment = make_page_environment()
    columns = list(dict.fromkeys(name for row in card.figures.values() for name in row))
    page = environment.get_template("card.html.j2").render(
        card=card, columns=columns, **inline_assets(environment, ("report.css",), ())
    )
    write_text(folder / "card.html", [page])
