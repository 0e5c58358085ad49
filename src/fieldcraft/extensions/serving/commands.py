"""The command `fieldcraft serve agent`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fieldcraft.cli.agents import require_search_tool, require_valid_agents
from fieldcraft.cli.app import (
    AgentOverridesArgument,
    AllowOption,
    DeviceOption,
    DialectOption,
    HostOption,
    IndexOption,
    MinPOption,
    PortOption,
    SamplingOption,
    SearchUrlOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    announce_imports,
    collect_sampling_keys,
    serve_app,
)
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.terminal.console import CleanConsole
from fieldcraft.terminal.progress import TerminalReporter
from fieldcraft.tools.addresses import require_free_address
from fieldcraft.types import UserError


@serve_app.command("agent")
def serve_trained_agent(
    model: Annotated[Path, typer.Option(help="A run, a stage, a checkpoint or a name on the hub.")],
    overrides: AgentOverridesArgument = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    name: Annotated[
        str | None, typer.Option(help="Name for clients. Default: the name of the folder.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Maximum number of running requests.")
    ] = 64,
    queue: Annotated[int, typer.Option(min=0, help="Maximum number of waiting requests.")] = 256,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Time limit of a request in seconds, including its wait.")
    ] = 300,
    shutdown_grace: Annotated[
        float,
        typer.Option(
            min=0, help="Time limit of running requests in seconds after a shutdown signal."
        ),
    ] = 30,
    token_env: Annotated[
        str | None, typer.Option(help="Environment variable with the token for clients.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token for clients.")
    ] = None,
    log_folder: Annotated[
        Path | None, typer.Option(help="Store requests and feedback in this folder.")
    ] = None,
    index: IndexOption = None,
    search_url: SearchUrlOption = None,
    dialect: DialectOption = None,
    device: DeviceOption = "auto",
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    sampling: SamplingOption = None,
    allow: AllowOption = None,
) -> None:
    """Serve a trained agent with its tools behind OpenAI's interfaces, and as a tool of MCP."""
    token = read_token(token_env, token_file)
    require_valid_agents([model], dialect, index, search_url)
    require_free_address(host, port)
    with announce_imports():
        try:
            from fieldcraft.extensions.serving.server import ListenAddress, serve_agent
        except ModuleNotFoundError as error:
            raise UserError(
                f"serving an agent needs the package '{error.name}': pip install"
                " 'fieldcraft[serve]'."
            ) from error
        from fieldcraft.extensions.serving.service import ServiceLimits
        from fieldcraft.runs.agent import find_agent
        from fieldcraft.runs.sampling import choose_decoding

    agent = find_agent(model).with_options(dialect, index, search_url, device)
    agent = agent.with_overrides(overrides or ())
    require_search_tool([agent], index, search_url)
    limits = ServiceLimits(
        concurrency=concurrency,
        queue=queue,
        timeout_seconds=timeout,
        shutdown_grace_seconds=shutdown_grace,
    )
    address = ListenAddress(host=host, port=port, token=token)
    reporter = TerminalReporter(CleanConsole())
    keys = collect_sampling_keys(temperature, top_k, top_p, min_p, sampling)
    decoding = choose_decoding(agent.recipe.evaluation, agent.model, reporter, **keys)
    serve_agent(
        agent, name or model.resolve().name, address, limits, decoding, log_folder, reporter
    )


def read_token(variable: str | None, file: Path | None) -> str | None:
    """Return the token of a server. It is never an argument, because all users of the machine can
    read arguments."""
    from fieldcraft.tools.http import read_key, require_sendable

    if variable is not None and file is not None:
        raise UserError("only one token is possible: give --token-env or --token-file, not both.")
    if file is not None:
        with raise_read_errors(file, "give a file with a token"):
            token = file.read_text("utf-8-sig").strip()
        require_sendable(str(file), token)
    elif variable is not None:
        token = read_key(variable)
    else:
        return None
    if not token:
        where = file or f"the environment variable {variable}"
        raise UserError(f"{where} contains no token: set one, or remove the option.")
    return token
