import asyncio
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest
import uvicorn

from fieldcraft.extensions.search.index import build_index
from fieldcraft.extensions.search.server import MAX_BODY_BYTES, create_app, serve_search
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import UserError


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    corpus = folder / "corpus.jsonl"
    corpus.write_text(
        '{"id": "a", "contents": "\\"Kalo Remi\\"\\nKalo Remi lives in Zumato."}\n'
        '{"id": "b", "title": "Zumato", "text": "Zumato is a city."}\n'
    )
    return build_index(corpus, folder / "index")


@pytest.fixture(scope="module")
def url(index):
    with serve_in_thread(create_app(index)) as url:
        yield url


KALO = {"id": "a", "contents": '"Kalo Remi"\nKalo Remi lives in Zumato.'}
ZUMATO = {"id": "b", "contents": '"Zumato"\nZumato is a city.'}


def test_documents_are_returned_as_search_r1_does(url):
    body = {"queries": ["zumato", "nothing known", "Kalo"], "topk": 2}
    answer = httpx.post(f"{url}/retrieve", json=body)
    assert answer.status_code == 200
    assert answer.json() == {"result": [[ZUMATO, KALO], [], [KALO]]}


def test_scores_are_returned_on_request(url, index):
    body = {"queries": ["zumato"], "topk": 1, "return_scores": True}
    [[hit]] = httpx.post(f"{url}/retrieve", json=body).json()["result"]
    assert hit == {"document": ZUMATO, "score": index.search(["zumato"], 1)[0][0].score}


def test_documents_are_returned_as_autocoa_does(url, index):
    scores = [passage.score for passage in index.search(["zumato"], 3)[0]]
    expected = {"documents": [ZUMATO, KALO], "scores": scores}
    assert httpx.post(f"{url}/retrieve", json={"query": "zumato"}).json() == expected
    body = {"query": ["zumato", "nothing known"], "tok_k": 3, "return_score": True}
    several = httpx.post(f"{url}/retrieve", json=body)
    assert several.json() == [expected, {"documents": [], "scores": []}]
    body = {"query": "zumato", "tok_k": 1, "return_score": False}
    assert httpx.post(f"{url}/retrieve", json=body).json() == {"documents": [ZUMATO]}


def test_topk_may_be_left_out_or_null(url):
    for body in ({"queries": ["zumato"]}, {"queries": ["zumato"], "topk": None}):
        answer = httpx.post(f"{url}/retrieve", json=body)
        assert answer.json() == {"result": [[ZUMATO, KALO]]}


@pytest.mark.parametrize("null", ["topk", "top_k", "tok_k", "return_scores", "return_score"])
def test_a_key_that_is_null_counts_as_absent(url, null):
    for body in ({"queries": ["zumato"], "query": None}, {"query": "zumato", "queries": None}):
        plain = httpx.post(f"{url}/retrieve", json=body).json()
        assert httpx.post(f"{url}/retrieve", json=body | {null: None}).json() == plain
    body = {"query": "zumato", null: None, "tok_k": 1, "return_score": False}
    if null not in ("tok_k", "return_score"):
        assert httpx.post(f"{url}/retrieve", json=body).json() == {"documents": [ZUMATO]}


@pytest.mark.parametrize("count", ["topk", "top_k", "tok_k"])
@pytest.mark.parametrize("scores", ["return_scores", "return_score"])
def test_either_interface_takes_every_spelling(url, count, scores):
    body = {"query": "zumato", count: 1, scores: False}
    assert httpx.post(f"{url}/retrieve", json=body).json() == {"documents": [ZUMATO]}
    body = {"queries": ["zumato"], count: 1, scores: True}
    [[hit]] = httpx.post(f"{url}/retrieve", json=body).json()["result"]
    assert hit["document"] == ZUMATO


@pytest.mark.parametrize("more", [{"k": 1}, {"topk": 1, "top_k": 1}, {"queries": ["a"]}])
def test_an_unknown_key_is_refused(url, more):
    answer = httpx.post(f"{url}/retrieve", json={"query": "zumato"} | more)
    assert answer.status_code == 422
    assert list(more)[-1] in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "The body: invalid JSON"),
        (b"{}", "The body: a request needs the key 'queries' or 'query'."),
        (b'{"query": null}', "The body: a request needs the key 'queries' or 'query'."),
        (b'{"queries": "zumato"}', "queries: it must be a list, as in [one, two], not 'zumato'."),
        (b'{"queries": ["a", 3]}', "queries.1: it must be text, not 3."),
        (b"[]", "The body: it must be a mapping, as in {key: value}, not []."),
        (b'{"query": 3}', "query: it must be text, not 3."),
        (b'{"query": "a", "tok_k": 0}', "tok_k: it must be 1 or more, not 0."),
        (b'{"queries": [], "topk": 0}', "topk: it must be 1 or more, not 0."),
        (b'{"query": "a", "topk": 1001}', "topk: it must be 1000 or less, not 1001."),
        (
            b'{"queries": [' + b'"a", ' * 10_000 + b'"a"]}',
            "queries: it must have 10000 or fewer",
        ),
        (
            b'{"queries": [' + b'"a", ' * 999 + b'"a"], "topk": 101}',
            "The body: the queries request more than 100000 pass",
        ),
        (
            b'{"query": [' + b'"a", ' * 999 + b'"a"], "topk": 101}',
            "The body: the queries request more than 100000 pass",
        ),
    ],
)
def test_a_bad_body_is_refused_with_a_sentence(url, body, sentence):
    answer = httpx.post(f"{url}/retrieve", content=body)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(sentence)


def test_health(url):
    assert httpx.get(f"{url}/health").json() == {"status": "ok", "passages": 2}


def test_a_port_in_use_is_named(index):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=rf"Cannot listen on 127\.0\.0\.1:{port} .*in use"):
            serve_search(index.folder, port=port)
    with pytest.raises(UserError, match="There is no port 70000"):
        serve_search(index.folder, port=70000)
    with pytest.raises(UserError, match=r"Cannot listen on 203\.0\.113\.7:0"):  # not local
        serve_search(index.folder, host="203.0.113.7", port=0)


def test_its_connections_send_at_once(index, monkeypatch):
    """Answers are small, so each would wait for the acknowledgement of the previous one."""
    found = []

    def run(server, sockets):
        [listener] = sockets
        with socket.create_connection(listener.getsockname()):
            connection, _ = listener.accept()
            with connection:
                found.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(uvicorn.Server, "run", run)
    serve_search(index.folder, port=0)
    assert found[0] != 0


class Held:
    """An index that blocks all searches until it is released."""

    def __init__(self):
        self.inside = threading.Semaphore(0)
        self.go_on = threading.Event()

    def search(self, queries, topk):
        self.inside.release()
        assert self.go_on.wait(300)
        return [[] for _ in queries]


def test_a_long_body_is_not_read_to_its_end(url):
    answer = httpx.post(f"{url}/retrieve", content=b" " * (MAX_BODY_BYTES + 1), timeout=60)
    message = f"The body has more than {MAX_BODY_BYTES} bytes; send a shorter one."
    assert (answer.status_code, answer.json()) == (413, {"error": message})


def test_no_more_threads_search_than_there_are_processors(monkeypatch):
    """All requests arrive during the first two searches, and each has time to get a thread."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    index = Held()

    async def ask_all():
        server = httpx.ASGITransport(create_app(index))
        async with httpx.AsyncClient(transport=server, base_url="http://here") as client:
            responses = [
                asyncio.create_task(client.post("/retrieve", json={"queries": ["a"]}))
                for _ in range(30)
            ]
            for _ in range(2):
                assert await asyncio.to_thread(index.inside.acquire, timeout=300)
            for _ in range(1000):
                await asyncio.sleep(0)
            more = index.inside.acquire(blocking=False)
            index.go_on.set()
            return more, await asyncio.gather(*responses)

    more, answers = asyncio.run(ask_all())
    assert not more
    assert [answer.json() for answer in answers] == [{"result": [[]]}] * 30


def test_a_folder_without_an_index_is_named(tmp_path):
    with pytest.raises(UserError, match="is not a search index: give"):
        serve_search(tmp_path)


def test_ctrl_c_ends_the_server_quietly(index):
    code = (
        "from pathlib import Path; from fieldcraft.extensions.search.server import serve_search;"
        f"serve_search(Path({str(index.folder)!r}), port=0)"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes, text=True) as process:
        try:
            url = process.stdout.readline().split()[-1]  # listens already, and answers soon
            assert httpx.get(f"{url}/health", trust_env=False).json()["status"] == "ok"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Traceback" not in errors
