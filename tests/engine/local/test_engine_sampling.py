import numpy as np
import pytest
import torch

from fieldcraft.engine.local.sampling import draw_uniforms, sample_tokens


def draw(logits: list[list[float]], temperatures: list[float], points: list[float]):
    return sample_tokens(torch.tensor(logits), torch.tensor(temperatures), torch.tensor(points))


def test_draws_invert_the_cumulative_distribution() -> None:
    points = [0.0, 0.09, 0.11, 0.29, 0.31, 1 - 2**-23]
    logits = np.log([[0.1, 0.2, 0.7]] * 6).tolist()
    ids, logprobs = draw(logits, [1.0] * 6, points)
    assert ids.tolist() == [0, 0, 1, 1, 2, 2]
    expected = np.log([0.1, 0.1, 0.2, 0.2, 0.7, 0.7])
    assert logprobs.numpy() == pytest.approx(expected, abs=1e-6)


def test_temperature_scales_the_logits() -> None:
    # Squared and normalised: 1/14, 4/14, 9/14.
    ids, logprobs = draw([np.log([1.0, 2.0, 3.0]).tolist()], [0.5], [0.1])
    assert ids.tolist() == [1]
    assert logprobs.tolist() == pytest.approx([np.log(4 / 14)], abs=1e-6)


def test_temperature_zero_takes_the_most_likely_at_temperature_one() -> None:
    ids, logprobs = draw([np.log([0.2, 0.7, 0.1]).tolist()], [0.0], [0.99])
    assert ids.tolist() == [1]
    assert logprobs.tolist() == pytest.approx([np.log(0.7)], abs=1e-6)


def test_a_token_without_probability_is_never_drawn() -> None:
    forbidden = -torch.inf
    points = [0.0, 0.999, 1 - 2**-23]
    ids, logprobs = draw([[forbidden, 0.0, forbidden]] * 3, [1.0] * 3, points)
    assert ids.tolist() == [1, 1, 1]
    assert logprobs.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_spoil_their_own_row_only(bad: float) -> None:
    _, logprobs = draw([[0.0, bad], [0.0, 0.0], [bad, 0.0]], [1.0, 1.0, 0.0], [0.2, 0.2, 0.2])
    assert torch.isfinite(logprobs).tolist() == [False, True, False]


def test_half_precision_is_sampled_in_single() -> None:
    logits = torch.zeros(1, 3, dtype=torch.bfloat16)
    _, logprobs = sample_tokens(logits, torch.ones(1), torch.zeros(1))
    assert logprobs.tolist() == pytest.approx([-np.log(3)], abs=1e-6)


def test_uniforms_are_those_of_splitmix64() -> None:
    # The first output of SplitMix64 seeded with 0 (state 0 + increment), which keys the stream.
    key = 0xE220A8397B1DCDAF
    golden, mask = 0x9E3779B97F4A7C15, 2**64 - 1

    def reference(counter: int) -> float:
        z = (key + (counter + 1) * golden) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return ((z ^ (z >> 31)) >> 41) / 2**23

    drawn = draw_uniforms(np.zeros(3, np.uint64), np.array([0, 1, 1000]))
    assert drawn.tolist() == [reference(0), reference(1), reference(1000)]


def test_uniforms_of_neighbouring_seeds_are_unrelated() -> None:
    seeds, counters = np.meshgrid(np.arange(100, dtype=np.uint64), np.arange(1000))
    drawn = draw_uniforms(seeds.ravel(), counters.ravel()).reshape(1000, 100)
    assert 0 <= drawn.min() < 1e-4
    assert 1 - 1e-4 < drawn.max() < 1
    assert drawn.mean() == pytest.approx(0.5, abs=0.005)
    assert drawn.var() == pytest.approx(1 / 12, abs=0.002)
    along_seeds = np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]
    along_counters = np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]
    assert abs(along_seeds) < 0.02
    assert abs(along_counters) < 0.02
