"""`web_search` over the loopback interface: results, repetitions, and rejections by engines."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from web_parts import TASK, CountingSite, failure, searcher, use

from bad_servers import OF_AN_ANSWER, drips, is_endless, raw_server, resets
from fieldcraft.extensions.search.index import build_index
from fieldcraft.extensions.web.search import ALREADY_SEARCHED_MESSAGE
from fieldcraft.tools.factory import make_tool
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import ToolError, ToolUnavailableError, UserError
from virtual_time import Clock, virtually

HITS = [
    {"title": "Ada", "url": "http://a/1", "content": "Born in Rome."},
    {"title": "Copy", "url": "https://huggingface.co/datasets/x", "content": "The answer."},
    {"title": "Other copy", "url": "http://a/2", "content": "canary GUID 7: the answer."},
    {"title": "Bo", "url": "http://a/3", "content": ""},
    {"title": "Cy", "url": "http://a/4", "content": "Born in Oslo."},
]


def engine(*responses: Response):
    """Return a server with these responses in order, then only the last, and its requests."""
    requests = []

    async def search(request):
        requests.append(request)
        return responses[min(len(requests), len(responses)) - 1]

    routes = [Route("/search", search, methods=["GET", "POST"])]
    return Starlette(routes=routes), requests


def test_results_are_numbered_and_copies_of_benchmarks_are_left_out():
    app, requests = engine(JSONResponse({"results": HITS}))
    with serve_in_thread(app) as url:
        [text] = use(searcher(f"{url}/search", top_k=2), {"query": "where was Ada born?"})
    assert text == "1. Ada\nhttp://a/1\nBorn in Rome.\n\n2. Bo\nhttp://a/3"
    assert dict(requests[0].query_params) == {"q": "where was Ada born?", "format": "json"}


def test_nothing_found():
    with serve_in_thread(engine(JSONResponse({"results": HITS[1:3]}))[0]) as url:
        assert use(searcher(url), {"query": "ada"}) == ["No result."]


def test_a_repeated_query_is_told_so_within_a_rollout():
    app, requests = engine(PlainTextResponse("busy", 500), JSONResponse({"results": HITS}))
    with serve_in_thread(app) as url:
        tool = searcher(url)
        assert isinstance(failure(tool, query="ada"), ToolUnavailableError)
        first, again, other = use(
            tool, {"query": "Ada  Lind"}, {"query": " ada lind "}, {"query": "bo"}
        )
        assert first == other != again == ALREADY_SEARCHED_MESSAGE
        assert use(tool, {"query": "ada lind"}) == [first]
    assert len(requests) == 4


def test_a_failed_search_is_not_remembered_as_done():
    app, _ = engine(PlainTextResponse("busy", 500), JSONResponse({"results": HITS}))

    async def rollout(tool):
        async with tool.open(TASK) as opened:
            with pytest.raises(ToolUnavailableError):
                await opened(query="ada")
            return await opened(query="ada")

    with serve_in_thread(app) as url:
        assert asyncio.run(rollout(searcher(url))).startswith("1. Ada")


def test_a_busy_engine_is_asked_again():
    app, requests = engine(PlainTextResponse("busy", 429), JSONResponse({"results": []}))
    with serve_in_thread(app) as url:
        assert use(searcher(url, retries=1), {"query": "ada"}) == ["No result."]
    assert len(requests) == 2


@pytest.mark.parametrize(
    ("response", "kind", "sentence"),
    [
        (Response("", 422), ToolError, "The search engine refuses the query (status 422)."),
        (Response("", 500), ToolUnavailableError, "The search engine failed with status 500."),
        (Response("<html>"), ToolUnavailableError, "The search engine's answer cannot be read."),
        (
            JSONResponse({"results": 3}),
            ToolUnavailableError,
            "The search engine's answer cannot be",
        ),
    ],
)
def test_a_search_that_fails_is_a_sentence(response, kind, sentence):
    with serve_in_thread(engine(response)[0]) as url:
        error = failure(searcher(url), query="ada")
    assert type(error) is kind
    assert str(error).startswith(sentence)


@pytest.mark.parametrize("behaviour", [resets, is_endless])
def test_a_broken_engine_is_given_up(behaviour):
    with raw_server(behaviour) as (url, _):
        error = failure(searcher(url, seconds=600), query="ada")
    assert type(error) is ToolUnavailableError
    assert str(error) == "The search engine does not answer."


def test_a_slow_engine_is_given_up():
    clock = Clock()
    with raw_server(drips(OF_AN_ANSWER, lambda: clock.jump(25))) as (url, _):
        error = failure(searcher(url, seconds=100), clock.run, query="ada")
    assert type(error) is ToolUnavailableError
    assert str(error) == "The search engine does not answer."


def test_an_empty_query_is_a_sentence():
    assert str(failure(searcher("http://127.0.0.1:1"), query=" ")) == "The query is empty."


@pytest.mark.parametrize("provider", ["searxng", "brave"])
def test_a_query_that_no_address_can_hold_is_a_sentence(provider, monkeypatch):
    monkeypatch.setenv("BRAVE_API_KEY", "secret")
    tool = searcher("http://127.0.0.1:1", provider=provider)
    for query in ("ada " * 2**14, "a" * (2**16 - 30)):
        assert str(failure(tool, query=query)) == "The query is too long."


def test_a_key_is_sent_in_a_header_and_a_refused_one_stops_the_run(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret\r")
    app, requests = engine(JSONResponse({"organic": []}), Response("", 403))
    with serve_in_thread(app) as url:
        tool = searcher(url, provider="serper", api_key_env="MY_KEY")
        assert use(tool, {"query": "ada"}) == ["No result."]
        with pytest.raises(UserError) as error:
            use(tool, {"query": "bo"})
    assert requests[0].headers["x-api-key"] == "secret"
    assert str(error.value) == (f"{url} refuses to search (status 403): set MY_KEY to a valid key.")


def test_an_engine_gets_one_request_at_a_time():
    site = CountingSite(200, b'{"results": []}')

    async def side_by_side(tool):
        async with tool.open(TASK) as opened:
            await asyncio.gather(*(opened(query=f"ada {i}") for i in range(5)))

    settings = {"provider": "searxng", "url": "http://engine.test/search"}
    for at_once in (1, 3):
        tool = make_tool("web_search", settings | {"max_concurrent": at_once}, site.sites)
        virtually(side_by_side(tool))
        assert site.most == at_once


def test_an_index_of_ones_own_is_searched(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        '{"id": "http://a/ada", "title": "Ada", "text": "Ada was\\nborn in Rome."}\n'
        '{"id": "7", "title": "Bo", "text": "Bo was born in Oslo."}\n'
        '{"id": "8", "title": "Cy", "text": "Cy has a cat."}\n'
    )
    build_index(corpus, tmp_path / "index")
    tool = make_tool("web_search", {"provider": "index", "index": str(tmp_path / "index")})
    assert use(tool, {"query": "Rome born"}, {"query": "rome  born"}) == [
        "1. Ada\nhttp://a/ada\nAda was born in Rome.\n\n2. Bo\nBo was born in Oslo.",
        ALREADY_SEARCHED_MESSAGE,
    ]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "the tool 'web_search' needs the setting 'provider'"),
        ({"provider": "bing"}, "'serper', 'tavily', 'brave', 'searxng' or 'index', not 'bing'"),
        ({"provider": "searxng"}, "needs the url of a searxng server: add 'url: http://HOST:"),
        ({"provider": "searxng", "url": "localhost:1"}, "is not a url of a server; write"),
        (
            {"provider": "searxng", "url": "http://u:p@a"},
            "the URL of 'url' contains a user or a password",
        ),
        ({"provider": "serper"}, "set the environment variable SERPER_API_KEY, or name another"),
        ({"provider": "brave", "api_key_env": "MINE"}, "set the environment variable MINE, or"),
        ({"provider": "brave", "api_key_env": "ODD"}, "variable ODD contains a line break or a"),
        ({"provider": "index"}, "needs both 'provider: index' and 'index: FOLDER' to search"),
        ({"provider": "searxng", "index": "a"}, "needs both 'provider: index' and 'index: FOL"),
        ({"provider": "searxng", "url": "http://a", "top_k": 0}, "it must be 1 or more, not 0"),
        ({"provider": "searxng", "url": "http://a", "top_l": 1}, "did you mean 'top_k'?"),
    ],
)
def test_wrong_settings_are_a_sentence(settings, sentence, monkeypatch):
    for name in ("SERPER_API_KEY", "MINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ODD", "ключ")
    with pytest.raises(UserError) as error:
        make_tool("web_search", settings)
    assert sentence in str(error.value)
