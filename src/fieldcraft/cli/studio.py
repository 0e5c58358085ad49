"""Command `studio`: browser page of runs, while they train and afterwards."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from fieldcraft.cli.app import AllowOption, PortOption, app


@app.command("view", hidden=True, help="Run 'fieldcraft studio', as this command is now called.")
@app.command()
def studio(
    runs: Annotated[list[Path], typer.Argument(help="Folders of one or more runs.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond this machine a token is required.")
    ] = "127.0.0.1",
    port: PortOption = 8001,
    token: Annotated[
        str | None,
        typer.Option(
            envvar=["FIELDCRAFT_STUDIO_TOKEN", "FIELDCRAFT_VIEW_TOKEN"],
            help="Token of the page. Default: a new one at each start.",
        ),
    ] = None,
    allow_sampling: Annotated[
        bool, typer.Option("--allow-sampling", help="Let users sample from a step of a trajectory.")
    ] = False,
    allow: AllowOption = None,
) -> None:
    """Show runs in the browser: curves, trajectories with their tokens, and a timeline."""
    from fieldcraft.extensions.studio.branch_command import BranchCommand
    from fieldcraft.extensions.studio.run_view import load_run_views
    from fieldcraft.extensions.studio.server import create_app
    from fieldcraft.runs.trust import require_trust
    from fieldcraft.tools.server_requests import is_loopback
    from fieldcraft.tools.serving import serve_until_interrupt

    run_views = load_run_views(runs)
    for run in run_views if allow_sampling else ():  # sampling commands cannot ask for consent
        if run.folder is not None:
            require_trust(run.folder, run.path)
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    page = create_app(
        run_views,
        token=token,
        branch_command=BranchCommand() if allow_sampling else None,
    )
    path = "/" if token is None else f"/?token={token}"
    serve_until_interrupt(page, "studio", host, port, path, page.state.end, token)
