"""Loss masks and packing, down to single tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.train import batch as batch_module
from fieldcraft.train.batch import Sample, SampleUnit, pack, split_micro_batches, to_sample
from fieldcraft.types import Author, Segment, Task, Trajectory


def trajectory(*segments: Segment) -> Trajectory:
    return Trajectory(Task("t", "who?", ("Kalo",)), list(segments))


# Tokens of the module docstring's trajectory: 3 + 5 + 4 + 4, and a simulated observation.
PROMPT = Segment(Author.PROMPT, [10, 11, 12], "<user> who? <assistant>")
THINK = Segment(Author.POLICY, [20, 21, 22, 23, 24], "", [-0.1, -0.2, -0.3, -0.4, -0.5])
READ = Segment(Author.TOOL, [30, 31, 32, 33], "<r> Kalo is .. </r>")
ANSWER = Segment(Author.POLICY, [40, 41, 42, 2], "It is Kalo. <eos>", [-1.0, -2.0, -3.0, -4.0])
DREAM = Segment(Author.SIMULATOR, [50, 51], "", [-0.7, -0.8])


def test_the_worked_example() -> None:
    whole = trajectory(PROMPT, THINK, READ, ANSWER)
    sample = to_sample(whole, {Author.POLICY})
    assert sample.ids.tolist() == [10, 11, 12, 20, 21, 22, 23, 24, 30, 31, 32, 33, 40, 41, 42, 2]
    assert sample.weight.tolist() == [0] * 3 + [1] * 5 + [0] * 4 + [1] * 4
    world_model = to_sample(whole, {Author.POLICY, Author.TOOL})
    assert world_model.weight.tolist() == [0] * 3 + [1] * 13


def test_every_author_has_its_own_mask() -> None:
    whole = trajectory(PROMPT, THINK, DREAM, READ, ANSWER)
    masks = {a: to_sample(whole, {a}).weight.tolist() for a in Author}
    assert masks == {
        Author.PROMPT: [0, 1, 1],  # nothing predicts the very first token
        Author.POLICY: [0] * 3 + [1] * 5 + [0] * 6 + [1] * 4,
        Author.SIMULATOR: [0] * 8 + [1] * 2,
        Author.TOOL: [0] * 10 + [1] * 4,
    }


def test_a_sample_ends_with_its_last_trained_token() -> None:
    """An observation that used up the budget is neither trained nor computed."""
    sample = to_sample(trajectory(PROMPT, THINK, READ), {Author.POLICY}, advantage=2.0)
    assert sample.ids.tolist() == [10, 11, 12, 20, 21, 22, 23, 24]
    for name in ("weight", "advantage", "sampled_logp", "old_logp", "ref_logp"):
        assert len(getattr(sample, name)) == 8
    assert to_sample(trajectory(PROMPT, THINK, READ), {Author.TOOL}).ids.tolist()[-1] == 33
    bare = to_sample(trajectory(PROMPT, THINK, READ), ())
    assert (bare.ids.tolist(), bare.weight.tolist()) == ([10], [0])


def test_logprobs_and_advantages_stand_where_they_were_sampled() -> None:
    sample = to_sample(trajectory(PROMPT, THINK, DREAM, ANSWER), {Author.POLICY}, advantage=-1.5)
    logp = [0, 0, 0, -0.1, -0.2, -0.3, -0.4, -0.5, -0.7, -0.8, -1, -2, -3, -4]
    assert sample.sampled_logp.tolist() == pytest.approx(logp)
    assert sample.old_logp.tolist() == sample.ref_logp.tolist() == sample.sampled_logp.tolist()
    assert sample.advantage.tolist() == [0] * 3 + [-1.5] * 5 + [0] * 2 + [-1.5] * 4


def test_a_token_without_a_finite_logprob_is_never_trained() -> None:
    broken = Segment(Author.POLICY, [20, 21, 22, 23], "", [-1.0, float("-inf"), float("nan"), -2.0])
    sample = to_sample(trajectory(PROMPT, broken), {Author.POLICY}, advantage=1.0)
    assert sample.weight.tolist() == [0, 0, 0, 1, 0, 0, 1]
    assert sample.advantage.tolist() == [0, 0, 0, 1, 0, 0, 1]
    assert sample.sampled_logp.tolist() == [0, 0, 0, -1, 0, 0, -2]


# -- packing ------------------------------------------------------------------------------------


def sample_of(number: int, length: int, untrained: int = 1) -> Sample:
    """Return a sample with unique ids, whose first `untrained` tokens have no weight."""
    ids = np.arange(length, dtype=np.int64) + 1000 * number
    weight = np.where(np.arange(length) < untrained, 0, 1).astype(np.float32)
    logp = -ids.astype(np.float32)
    return Sample(ids, weight, logp + 1, logp, logp - 1, logp - 2)


def test_two_sequences_lie_end_to_end() -> None:
    batch = pack([sample_of(1, 2), sample_of(2, 3)])
    assert batch.ids_N.tolist() == [1000, 1001, 2000, 2001, 2002]
    assert batch.position_N.tolist() == [0, 1, 0, 1, 2]
    assert batch.runs == [(0, 2, None), (2, 5, None)]
    assert batch.ids_T.tolist() == [1001, 2001, 2002]
    assert batch.from_T.tolist() == [0, 2, 3]
    assert batch.seq_T.tolist() == [0, 1, 1]
    assert batch.turn_T.tolist() == [0, 1, 1]
    assert batch.gather_field("sampled_logp").tolist() == [-1001, -2001, -2002]
    assert batch.gather_field("old_logp").tolist() == [-1002, -2002, -2003]
    assert batch.gather_field("weight").tolist() == [1, 1, 1]


def test_a_turn_is_an_unbroken_run_of_trained_tokens() -> None:
    first = to_sample(trajectory(PROMPT, THINK, READ, ANSWER), {Author.POLICY})
    second = to_sample(trajectory(PROMPT, THINK), {Author.POLICY})
    both = pack([first, second])
    assert both.turn_T.tolist() == [0] * 5 + [1] * 4 + [2] * 5
    # two trained runs that are adjacent in a row are still two turns
    bare = [sample_of(1, 2, untrained=0), sample_of(2, 2, untrained=0)]
    assert pack(bare).turn_T.tolist() == [0, 0, 1, 1]


units = st.lists(
    st.lists(st.integers(1, 30), min_size=1, max_size=3), min_size=1, max_size=12
)  # lengths of the samples of each unit


@given(units, st.integers(1, 200))
def test_nothing_is_lost_or_doubled(lengths: list[list[int]], max_tokens: int) -> None:
    numbers = iter(range(1, 100))
    given_units: list[SampleUnit] = [
        tuple(sample_of(next(numbers), length) for length in unit) for unit in lengths
    ]
    owner = {id(sample): i for i, unit in enumerate(given_units) for sample in unit}
    largest = max(map(sum, lengths))
    seen: list[int] = []
    trained: list[int] = []
    for batch in split_micro_batches(given_units, max_tokens):
        assert sum(map(len, batch.samples)) <= max(max_tokens, largest)
        # the members of a unit are adjacent, in order, and in one micro-batch
        members = [owner[id(sample)] for sample in batch.samples]
        for unit in set(members):
            first = members.index(unit)
            size = len(given_units[unit])
            found = batch.samples[first : first + size]
            assert all(a is b for a, b in zip(found, given_units[unit], strict=True))
        seen += batch.ids_N.tolist()
        listed = batch.ids_T
        assert listed.tolist() == (-batch.gather_field("sampled_logp")).tolist()
        assert (listed // 1000).tolist() == [
            batch.samples[i].ids[0] // 1000 for i in batch.seq_T.tolist()
        ]
        trained += listed.tolist()
    everything = [sample for unit in given_units for sample in unit]
    assert sorted(seen) == sorted(i for s in everything for i in s.ids.tolist())
    assert sorted(trained) == sorted(i for s in everything for i in s.ids[s.weight > 0].tolist())


# -- common prefixes -----------------------------------------------------------------------------


def sample_with(ids: list[int]) -> Sample:
    """Return a sample whose first token is untrained, with log-probabilities of minus the ids."""
    weight = np.array([0] + [1] * (len(ids) - 1), np.float32)
    logp = -np.array(ids, np.float32)
    return Sample(np.array(ids, np.int64), weight, logp, logp, logp, logp)


def test_a_common_prefix_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case is the worked example of `pack`, followed by a prefix that is too short to share."""
    samples = [sample_with([7, 8, 1]), sample_with([7, 8, 2, 3])]
    monkeypatch.setattr(batch_module, "MIN_SHARED_PREFIX_TOKENS", 2)
    batch = pack(samples)
    assert batch.ids_N.tolist() == [7, 8, 1, 2, 3]
    assert batch.position_N.tolist() == [0, 1, 2, 2, 3]
    assert batch.runs == [(0, 2, None), (2, 3, 0), (3, 5, 0)]
    assert batch.ids_T.tolist() == [8, 1, 8, 2, 3]  # 8 is trained in both
    assert batch.from_T.tolist() == [0, 1, 0, 1, 3]
    assert batch.seq_T.tolist() == [0, 0, 1, 1, 1]
    assert batch.turn_T.tolist() == [0, 0, 1, 1, 1]
    monkeypatch.setattr(batch_module, "MIN_SHARED_PREFIX_TOKENS", 3)
    assert pack(samples).runs == [(0, 3, None), (3, 7, None)]


def test_a_short_sequence_does_not_keep_the_others_from_sharing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts of one template have the same start, and those of one question share more."""
    monkeypatch.setattr(batch_module, "MIN_SHARED_PREFIX_TOKENS", 4)
    batch = pack([sample_with([1, 2, *rest]) for rest in ([], [3, 4, 5], [3, 4, 6], [7, 8])])
    assert batch.ids_N.tolist() == [1, 2, 1, 2, 3, 4, 5, 6, 1, 2, 7, 8]
    assert batch.runs == [(0, 2, None), (2, 6, None), (6, 7, 1), (7, 8, 1), (8, 12, None)]


texts = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=9), min_size=1, max_size=9)


@given(texts, st.integers(1, 4))
def test_every_token_sees_its_own_past_and_nothing_else(
    given_texts: list[list[int]], worth: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_module, "MIN_SHARED_PREFIX_TOKENS", worth)
        batch = pack([sample_with(text) for text in given_texts])

    def seen_from(place: int) -> list[int]:
        number = next(n for n, run in enumerate(batch.runs) if run.start <= place < run.end)
        run = batch.runs[number]
        text = batch.ids_N[run.start : place + 1].tolist()
        while run.parent is not None:
            assert run.parent < number
            number, run = run.parent, batch.runs[run.parent]
            text = batch.ids_N[run.start : run.end].tolist() + text
        assert batch.position_N[place] == len(text) - 1
        return text

    targets = iter(zip(batch.ids_T.tolist(), batch.from_T.tolist(), strict=True))
    for text in given_texts:
        for end in range(1, len(text)):
            target, place = next(targets)
            assert (target, seen_from(place)) == (text[end], text[:end])
    assert next(targets, None) is None
    if worth == 1:
        every = {tuple(text[:end]) for text in given_texts for end in range(1, len(text) + 1)}
        assert len(batch.ids_N) == len(every)


def test_what_begins_alike_is_packed_together_and_counts_once() -> None:
    prefixes = [[number] * 40 for number in (1, 2)]
    units: list[SampleUnit] = [
        (sample_with([*prefixes[number % 2], 100 + number]),) for number in range(8)
    ]
    batches = list(split_micro_batches(units, max_tokens=44))
    assert [len(batch.ids_N) for batch in batches] == [44, 44]
    assert [[int(s.ids[0]) for s in batch.samples] for batch in batches] == [[1] * 4, [2] * 4]
