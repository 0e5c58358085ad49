"""A search that fails on purpose."""

import asyncio

import pytest

from fieldcraft.data.passages import Passage
from fieldcraft.extensions.search.tool import FAILURE_MESSAGE, FailingSearch, search_function
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.types import ArgumentError, Task, ToolError, UserError


async def retrieve(query: str) -> list[Passage]:
    return [Passage("1", query, f"About {query}.")]


def failed(search: FailingSearch, task: str, calls: int) -> list[bool]:
    """Return for each of several equal calls of a rollout whether it failed."""

    async def call_repeatedly() -> list[bool]:
        found = []
        async with search.open(Task(task, "?", ())) as opened:
            for _ in range(calls):
                try:
                    output = await opened(query="Rome")
                except ToolError as error:
                    output = str(error)
                found.append(output == FAILURE_MESSAGE)
                assert output == FAILURE_MESSAGE or "About Rome." in output
        return found

    return asyncio.run(call_repeatedly())


def test_a_share_of_the_calls_fails_and_the_same_ones_when_repeated() -> None:
    search = FailingSearch(search_function(retrieve), 0.25)
    found = [failed(search, str(task), 20) for task in range(50)]
    assert 0.22 < sum(map(sum, found)) / 1000 < 0.28
    assert found == [failed(search, str(task), 20) for task in range(50)]
    assert not all(found[0])  # a repeated call may succeed


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_an_argument_may_have_any_name(share: float) -> None:
    """The policy chooses the names of arguments, so none may clash with a parameter of a tool."""

    async def call() -> None:
        async with FailingSearch(search_function(retrieve), share).open(Task("t", "?", ())) as tool:
            await tool(query="a", self=1)

    with pytest.raises(ToolError if share else ArgumentError):
        asyncio.run(call())


def test_only_the_search_over_an_index_fails_on_purpose() -> None:
    with pytest.raises(UserError, match="failures applies to the search over an index only"):
        load_recipe("smoke", ["search.failures=0.1", "search.url=http://localhost:1"])


@pytest.mark.parametrize("key", ["encoder=org/encoder", "ranking=bm25"])
def test_a_server_has_its_own_ranking(key: str) -> None:
    assert load_recipe("smoke", [f"search.{key}"])
    with pytest.raises(UserError, match=f"{key.partition('=')[0]} applies to an index of the"):
        load_recipe("smoke", [f"search.{key}", "search.url=http://localhost:1"])
