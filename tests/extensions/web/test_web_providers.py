"""Search engines: requests and answers as documented by the providers."""

import json

import pytest
from pydantic import ValidationError

from fieldcraft.extensions.web.providers import PROVIDERS, SearchRequest, SearchResult

ASKED = {
    "serper": SearchRequest(
        "POST", "http://s/search", {"X-API-KEY": "k"}, {"q": "ada & bo", "num": 3}
    ),
    "tavily": SearchRequest(
        "POST",
        "http://s/search",
        {"Authorization": "Bearer k"},
        {"query": "ada & bo", "max_results": 3},
    ),
    "brave": SearchRequest(
        "GET",
        "http://s/res/v1/web/search?q=ada+%26+bo&count=3",
        {"X-Subscription-Token": "k", "Accept": "application/json"},
    ),
    "searxng": SearchRequest("GET", "http://s/search?q=ada+%26+bo&format=json"),
}
ANSWERS = {
    "serper": {
        "searchParameters": {"q": "ada"},
        "organic": [
            {"title": "Ada", "link": "http://a", "snippet": "Born in\nRome.", "position": 1},
            {"title": "Bo", "link": "http://b"},
        ],
    },
    "tavily": {
        "query": "ada",
        "answer": None,
        "results": [
            {"title": "Ada", "url": "http://a", "content": "Born in Rome.", "score": 0.9},
            {"title": "Bo", "url": "http://b", "content": ""},
        ],
    },
    "brave": {
        "type": "search",
        "web": {
            "type": "search",
            "results": [
                {
                    "title": "<strong>Ada</strong>",
                    "url": "http://a",
                    "description": "Born in Rome.",
                },
                {"title": "Bo", "url": "http://b"},
            ],
        },
    },
    "searxng": {
        "query": "ada",
        "number_of_results": 0,
        "results": [
            {"title": "Ada", "url": "http://a", "content": "Born in Rome.", "engine": "x"},
            {"title": "Bo", "url": "http://b", "content": None},
        ],
        "suggestions": [],
    },
}


@pytest.mark.parametrize("name", PROVIDERS)
def test_request(name):
    assert PROVIDERS[name].build_request("http://s", "k", "ada & bo", 3) == ASKED[name]


@pytest.mark.parametrize("name", PROVIDERS)
def test_results(name):
    assert PROVIDERS[name].parse_results(json.dumps(ANSWERS[name]).encode()) == [
        SearchResult("Ada", "http://a", "Born in Rome."),
        SearchResult("Bo", "http://b", ""),
    ]


def test_brave_without_results():
    assert PROVIDERS["brave"].parse_results(b'{"type": "search", "query": {}}') == []


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b"{}", b'{"message": "no"}'])
@pytest.mark.parametrize("name", PROVIDERS)
def test_another_answer_is_an_error(name, content):
    with pytest.raises(ValidationError):
        PROVIDERS[name].parse_results(content)


def test_entities_and_lines_are_plain_text():
    content = b'{"results": [{"url": "http://a/\\nb", "title": "A &amp;  B\\n", "content": "x<y"}]}'
    assert PROVIDERS["searxng"].parse_results(content) == [
        SearchResult("A & B", "http://a/b", "x<y")
    ]
