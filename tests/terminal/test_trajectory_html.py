"""Trajectories in notebooks: their texts are text, and long ones are shortened."""

import re

from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.terminal.trajectory_html import MAX_CHARACTERS, MAX_ENTRIES, render_trajectory
from fieldcraft.types import (
    Author,
    CallOutcome,
    CallRecord,
    Segment,
    Status,
    Task,
    Trajectory,
)


def searched(observation: str, answer: str) -> Trajectory:
    """Return a trajectory with one search and an answer."""
    return Trajectory(
        Task("1", "Who <b>directed</b> it?", ("Ada & Bo",)),
        [
            Segment(Author.PROMPT, [1], "Who directed it?"),
            Segment(Author.POLICY, [2], 'Search. <tool_call>{"query": "it"}</tool_call>'),
            Segment(Author.TOOL, [3], f"<result>{observation}</result>"),
            Segment(Author.POLICY, [4], f"So <answer>{answer}</answer>"),
        ],
        [CallRecord("search", {"query": "it"}, observation, CallOutcome.OK, 0.1)],
        Status.ANSWERED,
        answer,
        rewards={"em": 1.0, "f1": 0.5},
    )


def test_a_trajectory_has_its_question_call_observation_answer_and_verdict() -> None:
    page = searched("Ada directed it.", "Ada")._repr_html_()
    labels = re.findall(r"<small>([^<]+)</small>\n([^<]*)<", page)
    assert labels == [
        ("question", "Who &lt;b&gt;directed&lt;/b&gt; it?"),
        ("thought", "Search."),
        ("action search", "it"),
        ("observation", "Ada directed it."),
        ("thought", "So"),
        ("answer", "Ada"),
        ("gold", "Ada &amp; Bo"),
    ]
    assert page.endswith("<small>right  calls 1  answered  em 1  f1 0.5</small></div>")


def test_a_page_that_a_tool_found_stays_text() -> None:
    page = render_trajectory(searched("<script>alert(1)</script>\x1b[31m", '<img src="x">'))
    assert "<script" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


@given(st.text(max_size=300), st.text(max_size=300))
def test_no_text_adds_an_element(observation: str, answer: str) -> None:
    page = render_trajectory(searched(observation, answer))
    assert {*re.findall(r"</?(\w+)", page)} == {"div", "small"}
    assert page.count("<div") == page.count("</div>")


def test_long_texts_and_long_rollouts_are_shortened() -> None:
    page = render_trajectory(searched("x" * 10_000, "Ada"))
    assert page.count("x") < MAX_CHARACTERS + 20
    assert f"… {10_000 - MAX_CHARACTERS} characters more" in page
    long = searched("Ada", "Ada")
    call, (prompt, turn, result, last) = long.calls[0], long.segments
    long.segments = [prompt, *[turn, result] * 50, last]
    long.calls = [call] * 50
    assert render_trajectory(long).count("action search") <= MAX_ENTRIES
    assert "112 earlier entries" in render_trajectory(long)
