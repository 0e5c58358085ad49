"""Outputs of notebooks: one message creates an output, later ones replace it."""

from types import SimpleNamespace
from typing import Any

from fieldcraft.terminal.notebook_display import NotebookDisplay, find_notebook


def test_one_output_is_replaced() -> None:
    sent: list[dict[str, Any]] = []
    publisher = SimpleNamespace(publish=lambda **message: sent.append(message))
    display = NotebookDisplay(SimpleNamespace(display_pub=publisher))
    display.show("<b>1</b>", "1")
    display.show("<b>2</b>", "2")
    assert [message["update"] for message in sent] == [False, True]
    assert sent[1]["data"] == {"text/html": "<b>2</b>", "text/plain": "2"}
    assert sent[0]["transient"] == sent[1]["transient"] == {"display_id": display.display_id}


def test_a_program_outside_of_a_kernel_has_no_output() -> None:
    assert find_notebook() is None
