import asyncio
import gc
import json
import socket

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fieldcraft.extensions.search.client import RemoteSearchTool
from fieldcraft.extensions.search.index import build_index
from fieldcraft.extensions.search.server import create_app
from fieldcraft.extensions.search.tool import SearchTool
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import ArgumentError, ToolError, UserError
from ports import NOBODY, reserved_port


def ask(tool, *queries):
    """Return the texts found for several concurrent queries, in a separate event loop."""

    async def search_all():
        return await asyncio.gather(*(tool(query=query) for query in queries))

    return asyncio.run(search_all())


def check(tool):
    asyncio.run(tool.check())


def answering(*responses):
    """Return a server with these responses in order, then only the last, and received bodies."""
    bodies = []

    async def retrieve(request):
        bodies.append(await request.json())
        response: Response = responses[min(len(bodies), len(responses)) - 1]
        return response

    return Starlette(routes=[Route("/retrieve", retrieve, methods=["POST"])]), bodies


BUSY = PlainTextResponse("busy", status_code=500)
FOUND = JSONResponse(
    {"result": [[{"document": {"id": 3, "contents": '"A"\nB'}, "score": 1.0}]]},
)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("client")
    corpus = folder / "corpus.jsonl"
    corpus.write_text(
        '{"title": "Kalo Remi", "text": "Kalo Remi lives in Zumato."}\n'
        '{"title": "\\"Zumato\\" (city)", "text": "Zumato is\\na city."}\n'
        '{"text": "Of no title is zumato."}\n'
    )
    return build_index(corpus, folder / "index")


def test_a_server_answers_as_an_index_in_the_process_does(index):
    local = SearchTool(index, topk=3)
    with serve_in_thread(create_app(index)) as url:
        remote = RemoteSearchTool(url + "/retrieve", topk=3)
        check(remote)
        queries = ["zumato", "Kalo Remi", "unknown", ""]
        assert ask(remote, *queries) == ask(local, *queries)
    assert remote.schema == local.schema
    assert remote.name == local.name == "search"


def test_the_question_is_put_as_search_r1_puts_it():
    app, bodies = answering(FOUND)
    with serve_in_thread(app) as url:
        assert ask(RemoteSearchTool(url + "/", topk=5), "a b") == ['result 1: "A"\nB']
    assert bodies == [{"queries": ["a b"], "topk": 5, "return_scores": True}]


def test_a_tool_outlives_the_event_loop_it_was_first_used_in():
    app, _ = answering(FOUND)
    with serve_in_thread(app) as url:
        tool = RemoteSearchTool(url)
        assert ask(tool, "a", "b") == ask(tool, "c", "d") == ['result 1: "A"\nB'] * 2
        del tool
        gc.collect()  # an open connection would emit a warning here


def test_a_busy_server_is_asked_again():
    app, bodies = answering(BUSY, PlainTextResponse("slower", status_code=429), FOUND)
    with serve_in_thread(app) as url:
        assert ask(RemoteSearchTool(url, retries=2), "a") == ['result 1: "A"\nB']
    assert len(bodies) == 3


def test_the_model_is_told_when_all_attempts_have_failed():
    app, bodies = answering(BUSY)
    with serve_in_thread(app) as url:
        tool = RemoteSearchTool(url, retries=1)
        with pytest.raises(
            ToolError, match=r"^Search failed: the server answered with status 500\.$"
        ):
            ask(tool, "a")
        assert len(bodies) == 2
        with pytest.raises(UserError, match=f"No search server answers at {url} .*status 500"):
            check(tool)


def test_a_refusal_is_not_repeated():
    app, bodies = answering(PlainTextResponse("not you", status_code=403))
    with serve_in_thread(app) as url, pytest.raises(ToolError, match="status 403"):
        ask(RemoteSearchTool(url), "a")
    assert len(bodies) == 1


SEARCH_R1 = {"queries": ["a"], "topk": 3, "return_scores": True}
AUTOCOA = {"query": "a", "tok_k": 3, "return_score": True}
WHAT = PlainTextResponse("what?", status_code=422)


def test_a_server_of_autocoa_is_found_out_once():
    found = JSONResponse(
        {"documents": [{"id": "3", "contents": '"A"\nB'}, {"contents": "C\nD"}], "scores": [2, 1]}
    )
    app, bodies = answering(WHAT, found)
    with serve_in_thread(app) as url:
        tool = RemoteSearchTool(url)
        check(tool)
        text = 'result 1: "A"\nB\nresult 2: "C"\nD'
        assert [*ask(tool, "a"), *ask(tool, "a")] == [text, text]
    check_body, *search_bodies = bodies
    assert check_body.keys() == SEARCH_R1.keys()
    assert search_bodies[1:] == [AUTOCOA, AUTOCOA]


def test_a_server_of_neither_kind_is_asked_once_as_each():
    app, bodies = answering(WHAT)
    with serve_in_thread(app) as url, pytest.raises(ToolError, match="status 422"):
        ask(RemoteSearchTool(url), "a")
    assert bodies == [SEARCH_R1, AUTOCOA]


def test_a_server_that_speaks_both_is_asked_as_search_r1(index):
    bodies = []
    app = create_app(index)

    async def listening(scope, receive, send):
        async def receive_and_record():
            message = await receive()
            bodies.append(json.loads(message["body"]))
            return message

        await app(scope, receive_and_record, send)

    with serve_in_thread(listening) as url:
        ask(RemoteSearchTool(url), "a")
    assert bodies == [SEARCH_R1]


@pytest.mark.parametrize(
    "garbage",
    [
        PlainTextResponse("<html>"),
        JSONResponse({"answer": 42}),
        JSONResponse({"result": []}),
        JSONResponse({"result": [[{"document": {"title": "no text"}, "score": 1.0}]]}),
    ],
)
def test_garbage_is_told_apart_from_an_answer(garbage):
    app, _ = answering(garbage)
    with serve_in_thread(app) as url:
        tool = RemoteSearchTool(url)
        with pytest.raises(ToolError, match="not in the format of /retrieve"):
            ask(tool, "a")
        with pytest.raises(UserError, match="not in the format of /retrieve"):
            check(tool)


def test_a_server_that_hangs_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts, and never answers
        tool = RemoteSearchTool(url_of(listener), timeout_seconds=0.2, retries=1)
        with pytest.raises(ToolError, match="Search failed: the server did not answer in time"):
            ask(tool, "a")
        with pytest.raises(UserError, match="did not answer in time"):
            check(tool)


def test_a_server_that_is_not_there_is_named():
    tool = RemoteSearchTool(NOBODY, retries=0, restart_seconds=0.0)
    with pytest.raises(ToolError, match="Search failed: the server cannot be reached"):
        ask(tool, "a")
    with pytest.raises(UserError, match=f"{NOBODY} .*; start one with 'fieldcraft serve search'"):
        check(tool)


def test_a_query_waits_for_a_server_that_is_restarted(index):
    async def search_during_restart(tool, port):
        searching = asyncio.create_task(tool(query="zumato"))
        await asyncio.sleep(0.2)  # the server is down
        with serve_in_thread(create_app(index), port):
            return await searching

    with reserved_port() as port:
        with serve_in_thread(create_app(index), port) as url:
            tool = RemoteSearchTool(url, retries=0)
            [expected] = ask(tool, "zumato")
        assert asyncio.run(search_during_restart(tool, port)) == expected


def url_of(listener):
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_wrong_arguments_never_reach_the_server():
    tool = RemoteSearchTool("http://127.0.0.1:9")
    with pytest.raises(ArgumentError, match="query: Field required"):
        asyncio.run(tool())


BAD_PARTS = ["http://a:b", "http://a:99999", "http://xn--a", "http://[::1"]


@pytest.mark.parametrize("url", ["localhost:8000", "", "ftp://host", "http://", *BAD_PARTS])
def test_a_bad_url_is_named(url):
    with pytest.raises(UserError, match="is not a url"):
        RemoteSearchTool(url)


@pytest.mark.parametrize("url", ["http://me:hunter2@host", "http://me:hunter2/@host"])
def test_a_url_with_a_password_is_refused_without_a_part_of_it(url):
    with pytest.raises(UserError) as refused:
        RemoteSearchTool(url)
    assert "hunter2" not in str(refused.value)


def test_bad_numbers_are_named():
    with pytest.raises(UserError, match="timeout_seconds=0 and retries=-1"):
        RemoteSearchTool("http://host", timeout_seconds=0, retries=-1)


def test_a_key_is_sent_and_never_a_part_of_the_address(monkeypatch: pytest.MonkeyPatch):
    keys_sent = []

    async def retrieve(request):
        keys_sent.append(request.headers.get("authorization"))
        return FOUND

    monkeypatch.setenv("SEARCH_KEY", "secret\r\n")  # from a file with line ends of Windows
    app = Starlette(routes=[Route("/retrieve", retrieve, methods=["POST"])])
    with serve_in_thread(app) as url:
        ask(RemoteSearchTool(url, api_key_env="SEARCH_KEY"), "a")
        ask(RemoteSearchTool(url), "a")
        with pytest.raises(UserError, match="contains a user or a password"):
            RemoteSearchTool(url.replace("//", "//ada:secret@"))
    assert keys_sent == ["Bearer secret", None]
    with pytest.raises(UserError, match="NO_SUCH_KEY, which is not set"):
        RemoteSearchTool(url, api_key_env="NO_SUCH_KEY")
    monkeypatch.setenv("SEARCH_KEY", "secret\nother")
    with pytest.raises(UserError, match="variable SEARCH_KEY contains a line break or a character"):
        RemoteSearchTool(url, api_key_env="SEARCH_KEY")
