import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.records.chains import split_chains
from fieldcraft.records.meta import CLOSED_BOOK_KEY, META_TYPES
from fieldcraft.records.trajectories import (
    from_json,
    read_trajectories,
    to_json,
    write_trajectories,
)
from fieldcraft.types import (
    Author,
    CallOutcome,
    CallRecord,
    Segment,
    Status,
    Task,
    Trajectory,
    UserError,
)

numbers = st.floats(-1e6, 1e6)
texts = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(texts, values, max_size=3)
scores = st.none() | numbers
micros = st.integers(-(10**8), 0).map(lambda micro: round(micro / 10**6, 6))
segments = st.builds(
    Segment,
    author=st.sampled_from(Author),
    ids=st.lists(st.integers(0, 2**31 - 1), max_size=5),
    text=texts,
    logprobs=st.lists(micros, max_size=5),
    versions=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 9)), max_size=3),
)


@st.composite
def folded(draw: st.DrawFn, parts: Any) -> Trajectory:
    """Return a trajectory and any number of following chains that continue from a summary."""
    trajectory = draw(parts)
    for _ in range(draw(st.integers(0, 3))):
        summary, prompt, rest = draw(segments), draw(segments), draw(st.lists(segments, max_size=2))
        trajectory.segments.append(replace(summary, author=Author.POLICY))
        trajectory.folds.append(len(trajectory.segments))
        trajectory.segments += [replace(prompt, author=Author.PROMPT), *rest]
    return trajectory


trajectories = st.builds(
    Trajectory,
    task=st.builds(
        Task,
        id=texts,
        question=texts,
        answers=st.lists(texts, max_size=3).map(tuple),
        meta=objects.filter(
            {*META_TYPES, CLOSED_BOOK_KEY}.isdisjoint
        ),  # these accept certain values only
    ),
    segments=st.lists(segments, max_size=3),
    calls=st.lists(
        st.builds(
            CallRecord,
            tool=texts,
            arguments=objects,
            observation=texts,
            outcome=st.sampled_from(CallOutcome),
            seconds=numbers,
            simulated=st.booleans(),
            cut=st.integers(min_value=0),
        ),
        max_size=3,
    ),
    status=st.sampled_from(Status),
    answer=st.none() | texts,
    well_formed=st.booleans(),
    rewards=st.dictionaries(texts, scores, max_size=3),
    reward=scores,
    error=texts,
    seconds=numbers,
)


@given(folded(trajectories))
def test_every_trajectory_comes_back_equal_from_one_line(trajectory):
    line = to_json(trajectory)
    assert "\n" not in line
    assert from_json(line) == trajectory
    parts = split_chains(trajectory)
    assert len(parts) == 1 + len(trajectory.folds)
    assert [segment for part in parts for segment in part] == trajectory.segments
    assert all(part[0].author is Author.PROMPT for part in parts[1:])


def test_only_a_folded_trajectory_has_the_key_of_folds():
    """Trajectories without folds are therefore written and read in the same format as before
    folds."""
    plain = Trajectory(Task("q", "?", ()), [Segment(Author.PROMPT, [1], "?")])
    assert "folds" not in json.loads(to_json(plain))
    assert from_json(to_json(plain)).folds == []


@given(st.lists(st.integers(-1, 6), max_size=3))
def test_folds_that_no_rollout_can_have_are_refused(folds):
    """Prompt, summary, prompt, tool, summary, prompt: only 2 and 5 can be folds."""
    authors = ["prompt", "policy", "prompt", "tool", "policy", "prompt"]
    segments = [Segment(Author(author), [1], "") for author in authors]
    line = to_json(Trajectory(Task("q", "?", ()), segments, folds=folds or [0]))
    if folds in ([2], [5], [2, 5]):
        assert from_json(line).folds == folds
    else:
        with pytest.raises(ValueError, match=r"its folds|one of its folds"):
            from_json(line)


@given(st.lists(trajectories, max_size=3))
def test_a_file_comes_back_equal(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("io") / "deep" / "t.jsonl"
    write_trajectories(path, records)
    assert list(read_trajectories(path)) == records
    assert [p.name for p in path.parent.iterdir()] == ["t.jsonl"]


def test_the_line_names_every_field_and_rounds_logprobs_only():
    trajectory = Trajectory(
        Task("q1", "Wo?", ("Köln",), {"hops": 2}),
        segments=[Segment(Author.POLICY, [7, 2], "ja", [-0.12345678, -1.0], [(2, 1), (3, 1)])],
        calls=[CallRecord("search", {"query": "Köln"}, "Rhein", CallOutcome.FAILED, 0.25, True, 7)],
        status=Status.ANSWERED,
        answer="Köln",
        rewards={"em": 1.0, "judge": None},
        reward=0.123456789,
    )
    assert json.loads(to_json(trajectory)) == {
        "task": {"id": "q1", "question": "Wo?", "answers": ["Köln"], "meta": {"hops": 2}},
        "segments": [
            {
                "author": "policy",
                "ids": [7, 2],
                "text": "ja",
                "logprobs": [-0.123457, -1.0],
                "versions": [[2, 1], [3, 1]],
            }
        ],
        "calls": [
            {
                "tool": "search",
                "arguments": {"query": "Köln"},
                "observation": "Rhein",
                "outcome": "failed",
                "seconds": 0.25,
                "simulated": True,
                "cut": 7,
            }
        ],
        "status": "answered",
        "answer": "Köln",
        "well_formed": False,
        "rewards": {"em": 1.0, "judge": None},
        "reward": 0.123456789,
        "correct": "em",
        "error": "",
        "seconds": 0.0,
    }


def test_an_argument_that_is_not_finite_stays_what_it_is():
    call = CallRecord("f", {"x": float("inf")}, "", CallOutcome.OK, 0.1)
    back = from_json(to_json(Trajectory(Task("q", "?", ()), calls=[call])))
    assert back.calls == [call]


@pytest.mark.parametrize(
    "broken",
    [
        Trajectory(Task("q", "?", ()), rewards={"em": float("inf")}),
        Trajectory(Task("q", "?", ()), reward=float("nan")),
        Trajectory(Task("q", "?", ()), seconds=float("inf")),
        Trajectory(
            Task("q", "?", ()), calls=[CallRecord("f", {}, "", CallOutcome.OK, float("inf"))]
        ),
    ],
)
def test_rewards_and_seconds_that_are_not_finite_are_refused(broken):
    with pytest.raises(ValueError, match="rewards or seconds that are not finite"):
        from_json(to_json(broken))


def test_text_that_was_never_text_is_written_as_question_marks(tmp_path):
    path = tmp_path / "t.jsonl"
    write_trajectories(path, [Trajectory(Task("q", "?", ()), error="\udcff!")])
    assert next(read_trajectories(path)).error == "?!"


def test_a_failing_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "t.jsonl"
    old = Trajectory(Task("q", "?", ()))
    write_trajectories(path, [old])

    def broken():
        yield Trajectory(Task("new", "?", ()))
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_trajectories(path, broken())
    assert list(read_trajectories(path)) == [old]


def test_a_wrong_line_is_named(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(to_json(Trajectory(Task("q", "?", ()))) + '\n{"question": "?"}\n')
    with pytest.raises(UserError, match=r"t\.jsonl, line 2 has unexpected contents \(task"):
        list(read_trajectories(path))
    with pytest.raises(UserError, match="does not exist"):
        list(read_trajectories(tmp_path / "none.jsonl"))


@pytest.mark.parametrize("wrong", [-1, 2**31, 10**30])
def test_ids_that_no_token_has_are_refused(tmp_path, wrong):
    path = tmp_path / "t.jsonl"
    segment = Segment(Author.TOOL, [7], "a")
    text = to_json(Trajectory(Task("q", "?", ()), segments=[segment]))
    path.write_text(text.replace("[7]", f"[{wrong}]") + "\n")
    with pytest.raises(UserError, match=r"t\.jsonl, line 1 cannot be read .*invalid token ids"):
        list(read_trajectories(path))
