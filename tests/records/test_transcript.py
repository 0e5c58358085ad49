import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.records.transcript import (
    EntryKind,
    TranscriptEntry,
    build_transcript,
    split_tags,
    strip_control_characters,
)
from fieldcraft.types import Author, CallOutcome, CallRecord, Segment, Status, Task, Trajectory

TASK = Task("q", "Where is Kelm?", ("Bar",))


def segment(author, text):
    return Segment(author, [1], text)


def search(query, observation, outcome=CallOutcome.OK, *, simulated=False):
    return CallRecord("search", {"query": query}, observation, outcome, 0.0, simulated)


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("<search> Kelm </search>", "<answer> Bar </answer>"),
        ("<begin_search> Kelm </end_search>", "\\boxed{Bar}"),
        ('<tool_call>\n{"arguments": {"query": "Kelm"}}\n</tool_call>', "Bar<|im_end|>"),
        ("```python\nKelm\n```", "```\nBar\n```"),
    ],
)
def test_a_turn_is_cut_where_its_tag_opens(action, answer):
    trajectory = Trajectory(
        TASK,
        segments=[
            segment(Author.PROMPT, "Where is Kelm?\n"),
            segment(Author.POLICY, f"<think>Bar? I look Kelm up.</think>\n{action}"),
            segment(Author.TOOL, "\n<result> Kelm lies in Bar. </result>\n"),
            segment(Author.POLICY, f"<think>So Bar.</think>\n{answer}"),
        ],
        calls=[search("Kelm", "Kelm lies in Bar.")],
        status=Status.ANSWERED,
        answer="Bar",
    )
    assert build_transcript(trajectory) == [
        TranscriptEntry(EntryKind.PROMPT, "Where is Kelm?"),
        TranscriptEntry(EntryKind.THOUGHT, "Bar? I look Kelm up."),
        TranscriptEntry(EntryKind.ACTION, "Kelm", "search"),
        TranscriptEntry(EntryKind.OBSERVATION, "Kelm lies in Bar."),
        TranscriptEntry(EntryKind.THOUGHT, "So Bar."),
        TranscriptEntry(EntryKind.ANSWER, "Bar"),
    ]


def test_chains_follow_one_another_with_the_summary_between_them():
    """A summary is neither a thought nor a turn with a call, although calls follow it."""
    trajectory = Trajectory(
        TASK,
        segments=[
            segment(Author.PROMPT, "Where is Kelm?\n"),
            segment(Author.POLICY, "First.<search>a</search>"),
            segment(Author.TOOL, "<result>one</result>"),
            segment(Author.PROMPT, "Sum up.\n<summary>\n"),
            segment(Author.POLICY, "It is one.\n</summary>"),
            segment(Author.PROMPT, "Where is Kelm?\n\n<summary>\nIt is one.\n</summary>\n"),
            segment(Author.POLICY, "Second.<search>b</search>"),
            segment(Author.TOOL, "<result>two</result>"),
            segment(Author.POLICY, "So.<answer>Bar</answer>"),
        ],
        calls=[search("a", "one"), search("b", "two")],
        status=Status.ANSWERED,
        answer="Bar",
        folds=[5],
    )
    assert build_transcript(trajectory) == [
        TranscriptEntry(EntryKind.PROMPT, "Where is Kelm?"),
        TranscriptEntry(EntryKind.THOUGHT, "First."),
        TranscriptEntry(EntryKind.ACTION, "a", "search"),
        TranscriptEntry(EntryKind.OBSERVATION, "one"),
        TranscriptEntry(EntryKind.PROMPT, "Sum up.\n<summary>"),
        TranscriptEntry(EntryKind.SUMMARY, "It is one."),
        TranscriptEntry(
            EntryKind.PROMPT,
            "Where is Kelm?\n\n<summary>\nIt is one.\n</summary>",
            "chain 2 of 2",
        ),
        TranscriptEntry(EntryKind.THOUGHT, "Second."),
        TranscriptEntry(EntryKind.ACTION, "b", "search"),
        TranscriptEntry(EntryKind.OBSERVATION, "two"),
        TranscriptEntry(EntryKind.THOUGHT, "So."),
        TranscriptEntry(EntryKind.ANSWER, "Bar"),
    ]


def test_a_simulated_failed_observation_says_so_and_one_that_was_cut_is_shown_as_seen():
    trajectory = Trajectory(
        TASK,
        segments=[
            segment(Author.POLICY, "<search>a</search>"),
            segment(Author.TOOL, "<result>"),
            segment(Author.SIMULATOR, "dreamt"),
            segment(Author.TOOL, "</result>"),
            segment(Author.POLICY, "<search>b</search>"),
            segment(Author.TOOL, "<result>long te…</result>"),
        ],
        calls=[
            search("a", "dreamt", CallOutcome.FAILED, simulated=True),
            search("b", "long text"),
        ],
        status=Status.TRUNCATED,
    )
    assert build_transcript(trajectory) == [
        TranscriptEntry(EntryKind.ACTION, "a", "search"),
        TranscriptEntry(EntryKind.OBSERVATION, "dreamt", "simulated, failed"),
        TranscriptEntry(EntryKind.ACTION, "b", "search"),
        TranscriptEntry(EntryKind.OBSERVATION, "<result>long te…</result>"),
    ]


def test_a_malformed_attempt_without_a_call_does_not_shift_the_calls():
    invalid = [segment(Author.POLICY, "<serch>a</serch>"), segment(Author.TOOL, "Invalid.")]
    valid = [segment(Author.POLICY, "<search>b</search>"), segment(Author.TOOL, "found b")]
    invalid_entries = [
        TranscriptEntry(EntryKind.THOUGHT, "<serch>a</serch>"),
        TranscriptEntry(EntryKind.OBSERVATION, "Invalid."),
    ]
    found = [
        TranscriptEntry(EntryKind.ACTION, "b", "search"),
        TranscriptEntry(EntryKind.OBSERVATION, "found b"),
    ]
    calls = [search("b", "found b")]
    assert build_transcript(Trajectory(TASK, invalid + valid, calls)) == invalid_entries + found
    assert build_transcript(Trajectory(TASK, valid + invalid, calls)) == found + invalid_entries


def test_several_calls_of_a_turn_are_shown_with_their_observations():
    turn = (
        '<think>All of it.</think>\n<tool_call>{"query": "Kelm"}</tool_call>\n'
        '<tool_call>{</tool_call>\n<tool_call>{"query": "Bar"}</tool_call>'
    )
    trajectory = Trajectory(
        TASK,
        segments=[
            segment(Author.POLICY, turn),
            segment(Author.TOOL, "<response>It lies there.</response>\n<response>"),
            segment(Author.TOOL, "No JSON.</response>\n<response>"),
            segment(Author.TOOL, "It lies there.</response>"),
            segment(Author.POLICY, '<tool_call>{"query": "Kelm"}</tool_call>'),
            segment(Author.SIMULATOR, "<response>"),
            segment(Author.SIMULATOR, "It lies there."),
            segment(Author.SIMULATOR, "</response>"),
            segment(Author.POLICY, "Bar"),
        ],
        calls=[
            search("Kelm", "It lies there."),
            CallRecord("", {}, "No JSON.", CallOutcome.MALFORMED, 0.0),
            search("Bar", "It lies there."),
            search("Kelm", "It lies there.", simulated=True),
        ],
        answer="Bar",
    )
    assert build_transcript(trajectory) == [
        TranscriptEntry(EntryKind.THOUGHT, "All of it."),
        TranscriptEntry(EntryKind.ACTION, "Kelm", "search"),
        TranscriptEntry(EntryKind.ACTION, "{}"),
        TranscriptEntry(EntryKind.ACTION, "Bar", "search"),
        TranscriptEntry(EntryKind.OBSERVATION, "It lies there."),
        TranscriptEntry(EntryKind.OBSERVATION, "No JSON.", "malformed"),
        TranscriptEntry(EntryKind.OBSERVATION, "It lies there."),
        TranscriptEntry(EntryKind.ACTION, "Kelm", "search"),
        TranscriptEntry(EntryKind.OBSERVATION, "It lies there.", "simulated"),
        TranscriptEntry(EntryKind.ANSWER, "Bar"),
    ]


def test_equal_observations_of_two_turns_stay_apart():
    turn = [segment(Author.POLICY, "<search>a</search>"), segment(Author.TOOL, "<r>found</r>")]
    trajectory = Trajectory(TASK, 2 * turn, [search("a", "found"), search("a", "found")])
    kinds = [entry.kind for entry in build_transcript(trajectory)]
    assert kinds == [EntryKind.ACTION, EntryKind.OBSERVATION] * 2


def test_a_cut_observation_says_so():
    call = CallRecord(
        "search", {"query": "a"}, "long\n[9 characters left out]\n", CallOutcome.OK, 0.0, cut=9
    )
    segments = [segment(Author.POLICY, "<search>a</search>"), segment(Author.TOOL, "<r>lo</r>")]
    entries = build_transcript(Trajectory(TASK, segments, [call]))
    assert entries[1] == TranscriptEntry(EntryKind.OBSERVATION, "<r>lo</r>", "9 characters cut")


def test_a_call_whose_observation_did_not_fit_is_still_shown():
    trajectory = Trajectory(
        TASK,
        segments=[segment(Author.POLICY, "<search>b</search>")],
        calls=[search("b", "too long", CallOutcome.REFUSED)],
        status=Status.TRUNCATED,
    )
    assert build_transcript(trajectory) == [
        TranscriptEntry(EntryKind.ACTION, "b", "search"),
        TranscriptEntry(EntryKind.OBSERVATION, "too long", "refused"),
    ]


def test_an_answer_without_any_tag_is_no_thought():
    trajectory = Trajectory(TASK, [segment(Author.POLICY, "Bar<|im_end|>")], answer="Bar")
    assert build_transcript(trajectory) == [TranscriptEntry(EntryKind.ANSWER, "Bar")]


def test_what_cannot_be_found_in_the_text_costs_none_of_it():
    trajectory = Trajectory(TASK, [segment(Author.POLICY, "<answer>B a r")], answer="Bar")
    assert build_transcript(trajectory)[0] == TranscriptEntry(EntryKind.THOUGHT, "<answer>B a r")


def test_several_arguments_are_shown_as_json():
    call = CallRecord("add", {"a": 1, "b": "ü"}, "2", CallOutcome.OK, 0.0)
    trajectory = Trajectory(
        TASK, [segment(Author.POLICY, '<tool_call>{"a": 1, "b": "ü"}'), segment(Author.TOOL, "2")]
    )
    trajectory.calls.append(call)
    assert build_transcript(trajectory)[0] == TranscriptEntry(
        EntryKind.ACTION, '{"a": 1, "b": "ü"}', "add"
    )


def test_clean_removes_what_could_act_on_a_terminal():
    assert strip_control_characters(
        "a\x1b[31mb\x1b[0m\x1b]0;title\x07c\x1b]8;;x\x1b\\d\r\x00\x9b\u202ee\tf\n"
    ) == ("abcde\tf\n")


@given(st.text())
def test_clean_leaves_no_control_character_and_is_idempotent(text):
    cleaned = strip_control_characters(text)
    assert not set(cleaned) & {chr(c) for c in [*range(9), *range(11, 32), *range(127, 160)]}
    assert strip_control_characters(cleaned) == cleaned


@given(st.text(alphabet="<>/ab| "))
def test_split_tags_loses_nothing(text):
    assert "".join(piece for piece, _ in split_tags(text)) == text


def test_split_tags_marks_tags_only():
    assert list(split_tags("1 < 2 <think>a</think>")) == [
        ("1 < 2 ", False),
        ("<think>", True),
        ("a", False),
        ("</think>", True),
    ]
