"""Output of a notebook's cell that can be replaced, without an import of IPython."""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass, field
from typing import Any


@dataclass
class NotebookDisplay:
    """One output of the running cell. The first text creates it, each further one replaces it, also
    from other threads and while other cells run."""

    shell: Any
    display_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    is_open: bool = False

    def show(self, html: str, text: str) -> None:
        """Show HTML; `text` is for frontends that cannot."""
        self.shell.display_pub.publish(
            data={"text/html": html, "text/plain": text},
            transient={"display_id": self.display_id},
            update=self.is_open,
        )
        self.is_open = True


def find_notebook() -> NotebookDisplay | None:
    """Return a new output if this program runs in a notebook's kernel, otherwise None."""
    ipython = sys.modules.get("IPython")  # every kernel has imported it
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or "IPKernelApp" not in shell.config:
        return None
    return NotebookDisplay(shell)
