"""A real model behind the server, and the command that serves it."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from checkpoints import write_tiny_checkpoint
from cli_parts import sentence, status
from fieldcraft.engine.resources import RunResources
from fieldcraft.extensions.serving import server
from fieldcraft.extensions.serving.app import create_app
from fieldcraft.extensions.serving.commands import read_token
from fieldcraft.extensions.serving.server import open_service
from fieldcraft.extensions.serving.service import AgentService, ServiceLimits
from fieldcraft.runs.agent import Agent, find_agent
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import UserError
from serving_parts import asyncs, client
from waiting import wait_until

CLIENTS = 200


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Agent:
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("model"), "qwen3")
    return find_agent(model).with_options("hermes", None, None, "cpu")


def serve(agent: Agent, **limits: float) -> AgentService:
    return asyncio.run(
        open_service(agent, "tiny", ServiceLimits(**limits), RunResources(Path("unused")))
    )  # type: ignore[arg-type]


def make_body(question: str = "Who?", **more: object) -> dict[str, object]:
    return {"model": "tiny", "messages": [{"role": "user", "content": question}], **more}


async def hang_up(url: str, body: dict[str, object]) -> None:
    """Close the connection at the first event."""
    peer = httpx.URL(url)
    reader, writer = await asyncio.open_connection(peer.host, peer.port)
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {peer.host}\r\ncontent-length: {len(data)}"
    writer.write(f"{head}\r\ncontent-type: application/json\r\n\r\n".encode() + data)
    await reader.readuntil(b"data: ")
    writer.close()


def test_its_folder_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    async def serving(*arguments: Any) -> None:
        [resources] = [argument for argument in arguments if isinstance(argument, RunResources)]
        folders.append(resources.folder)
        assert resources.folder.stat().st_mode & 0o777 == 0o700

    monkeypatch.setattr(server, "run_server", serving)
    where = server.ListenAddress(host="127.0.0.1", port=0, token=None)
    for _ in range(2):
        server.serve_agent(None, "a", where, ServiceLimits())  # type: ignore[arg-type]
    first, second = folders
    assert first != second
    assert not first.exists()  # no files were written there


def test_it_answers_as_the_agent_does(agent: Agent) -> None:
    expected = agent.ask("Who directed it?")
    with serve_in_thread(create_app(serve(agent))) as url:
        done = client(url).chat.completions.create(**make_body("Who directed it?"))
        streamed = list(
            client(url).chat.completions.create(**make_body("Who directed it?"), stream=True)
        )
    assert done.choices[0].message.content == (expected.answer or "")
    deltas = [chunk.choices[0].delta for chunk in streamed]
    assert "".join(delta.content or "" for delta in deltas) == (expected.answer or "")
    assert done.usage.total_tokens == len(expected.ids)


def test_an_agent_of_an_environment_of_others_is_refused(agent: Agent) -> None:
    others = {"name": "text", "env": "my_game:Guess"}
    player = agent.with_settings(environment=others, tools=[], evaluation={"workflows": []})
    with pytest.raises(UserError, match="acts in the environment 'text'"):
        serve(player)


def test_the_seed_decides_what_is_sampled(agent: Agent) -> None:
    def sample(seed: int | None) -> str:
        body = make_body(temperature=1.0, seed=seed, max_tokens=24)
        message = client(url).chat.completions.create(**body).choices[0].message
        return f"{message.reasoning_content}|{message.content}"

    with serve_in_thread(create_app(serve(agent))) as url:
        assert sample(7) == sample(7)
        assert len({sample(7), sample(8), sample(9)}) == 3
        assert len({sample(None) for _ in range(3)}) == 3


@pytest.mark.long
def test_two_hundred_clients_at_once(agent: Agent) -> None:
    """A quarter of the clients streams, and a quarter disconnects during the stream."""
    service = serve(agent, concurrency=64, queue=CLIENTS)

    async def send(api: openai.AsyncOpenAI, number: int) -> str:
        body = make_body(f"Who is number {number}?", temperature=1.0, seed=number, max_tokens=20)
        if number % 4 == 0:
            stream = await api.chat.completions.create(**body, stream=True)
            return [chunk async for chunk in stream][-1].choices[0].finish_reason
        if number % 4 == 1:
            await hang_up(url, {**body, "stream": True})
            return "left"
        done = await api.chat.completions.create(**body)
        assert done.usage.completion_tokens <= 20
        return done.choices[0].finish_reason

    async def all_of_them() -> list[str]:
        async with asyncs(url) as api:
            return await asyncio.gather(*(send(api, number) for number in range(CLIENTS)))

    with serve_in_thread(create_app(service)) as url:
        ends = asyncio.run(all_of_them())
        wait_until(lambda: service.active_requests == 0)
        metrics = httpx.get(f"{url}/metrics").text
        assert "fieldcraft_agent_engine_sessions 0.0" in metrics
    assert len(ends) == CLIENTS
    assert ends.count("left") == CLIENTS // 4
    assert set(ends) <= {"left", "stop", "length"}
    counted = re.findall(r"^fieldcraft_agent_requests_total.* (\d+)\.0$", metrics, re.MULTILINE)
    assert sum(map(int, counted)) == CLIENTS


@pytest.fixture
def process(agent: Agent, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `fieldcraft serve agent` in a separate process, and yield it with its URL."""
    command = [sys.executable, "-m", "fieldcraft", "serve", "agent", "--model", agent.model]
    command += ["--dialect", "hermes", "--device", "cpu", "--port", "0", "--name", "tiny"]
    command += ["--token-env", "TINY_TOKEN", "--log-folder", tmp_path / "served"]
    environment = {**os.environ, "TINY_TOKEN": "sesame", "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert started.stdout is not None
    assert started.stderr is not None
    line = started.stdout.readline()
    yield started, line.rpartition(" ")[2].strip()
    if started.poll() is None:
        started.kill()
    started.wait()
    started.stdout.close()
    started.stderr.close()


@pytest.mark.long
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_lets_it_finish_what_is_under_way(
    process: tuple[subprocess.Popen[str], str], number: signal.Signals, tmp_path: Path
) -> None:
    server, url = process
    body = make_body(temperature=1.0, seed=3)
    stream = client(url, "sesame").chat.completions.create(**body, stream=True)
    first = next(stream)
    server.send_signal(number)
    rest = list(stream)
    assert first.choices[0].delta.role == "assistant"
    assert rest[-1].choices[0].finish_reason in ("stop", "length")
    assert server.wait(120) == 0
    assert server.stderr is not None
    assert "Traceback" not in server.stderr.read()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")
    assert (tmp_path / "served" / "trajectories.jsonl").read_text().count("\n") == 1


def test_mistakes_at_the_start_are_sentences(
    agent: Agent,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*options: object) -> str:
        assert status("serve", "agent", "--model", agent.model, *options) == 2
        return sentence(capsys)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert "choose another port" in refused("--port", listener.getsockname()[1])
    assert "not both" in refused("--token-env", "A", "--token-file", tmp_path / "b")
    monkeypatch.setenv("EMPTY", " ")
    assert "EMPTY contains no token" in refused("--token-env", "EMPTY")
    assert "token" in refused("--token-file", tmp_path / "none")
    (tmp_path / "file").touch()
    assert "nothing can be written" in refused("--log-folder", tmp_path / "file" / "folder")
    assert status("serve", "agent", "--model", tmp_path / "nowhere") == 2
    assert "holds no model" in sentence(capsys)


@pytest.mark.parametrize("text", ["sesame\nsimsim\n", "öffne dich"])
def test_a_token_that_no_client_can_send_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(UserError, match="token contains a line break or a character"):
        read_token(None, tmp_path / "token")


def test_a_token_may_stand_in_a_file_of_a_windows_editor(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes("\ufeffsesame\r\n".encode())
    assert read_token(None, tmp_path / "token") == "sesame"
