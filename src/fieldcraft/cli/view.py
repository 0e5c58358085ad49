"""The command view: a page in the browser that shows runs while they train and afterwards."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from fieldcraft.cli.app import AllowOption, app


@app.command()
def view(
    runs: Annotated[list[Path], typer.Argument(help="The folders of one run or several.")],
    host: Annotated[
        str, typer.Option(help="The address to listen on; beyond this machine a token is needed.")
    ] = "127.0.0.1",
    port: int = 8001,
    token: Annotated[
        str | None,
        typer.Option(envvar="FIELDCRAFT_VIEW_TOKEN", help="By default a new one at each start."),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Let readers sample from a step of a trajectory.")
    ] = False,
    allow: AllowOption = None,
) -> None:
    """Show runs in the browser: curves, trajectories and their tokens, and who waited for whom."""
    from fieldcraft.runs.trust import require_trust
    from fieldcraft.tools.access import is_loopback
    from fieldcraft.tools.serving import serve_until_interrupt
    from fieldcraft.view.branch_command import BranchCommand
    from fieldcraft.view.index import TrajectoryIndex, find_index_path
    from fieldcraft.view.run_view import load_run_views
    from fieldcraft.view.server import create_app

    run_views = load_run_views(runs)
    for run in run_views if sample else ():  # the commands that sample cannot ask
        if run.folder is not None:
            require_trust(run.folder, run.path)
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    page = create_app(
        run_views,
        TrajectoryIndex(find_index_path()),
        token=token,
        branch_command=BranchCommand() if sample else None,
    )
    path = "/" if token is None else f"/?token={token}"
    serve_until_interrupt(page, "view", host, port, path, page.state.end, token)
