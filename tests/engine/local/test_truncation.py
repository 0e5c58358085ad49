from pathlib import Path

import numpy as np
import pytest
import torch

from engine_parity import PROMPT, TOKENIZER, gather, of_transformers, plain_logprobs, sharp_model
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.local.sampling import (
    TruncationLimits,
    sample_rows,
    sample_tokens,
    sample_truncated,
)
from fieldcraft.sampling import NO_TRUNCATION, SamplingParams, Truncation

EVERYWHERE = (torch.arange(400) + 0.5) / 400
LIMITS = [
    Truncation(top_k=3),
    Truncation(top_p=0.6),
    Truncation(min_p=0.3),
    Truncation(top_k=20, top_p=0.9),
    Truncation(top_k=5, top_p=0.8, min_p=0.2),
]


def cut_of(*rows: Truncation) -> TruncationLimits:
    columns = zip(*((float(r.top_k), r.top_p, r.min_p) for r in rows), strict=True)
    return TruncationLimits(*(torch.tensor(column) for column in columns))


def drawn(
    logits: torch.Tensor, limits: Truncation, temperature: float = 1.0
) -> dict[int, tuple[float, float]]:
    """Return the sampled frequency and the reported probability of each token of a row [V].

    The random numbers are evenly spread.
    """
    n = len(EVERYWHERE)
    ids, logprobs = sample_truncated(
        logits.expand(n, -1), torch.full((n,), temperature), EVERYWHERE, cut_of(*[limits] * n)
    )
    return {
        int(i): (float((ids == i).float().mean()), float(logprobs[ids == i][0].exp()))
        for i in ids.unique()
    }


def test_the_limits_by_hand() -> None:
    logits = torch.tensor([0.05, 0.4, 0.2, 0.3, 0.05]).log()
    only = {1: 4 / 9, 2: 2 / 9, 3: 3 / 9}
    for limits in (Truncation(top_k=3), Truncation(min_p=0.5), Truncation(top_p=0.71)):
        found = drawn(logits, limits)
        assert found.keys() == only.keys()
        for token, (frequency, probability) in found.items():
            assert probability == pytest.approx(only[token], abs=1e-6)
            assert frequency == pytest.approx(only[token], abs=1 / 400)


def test_the_temperature_comes_first_and_top_p_looks_at_what_the_others_left() -> None:
    logits = torch.tensor([0.5, 0.3, 0.1, 0.1]).log()
    # Squared: 25, 9, 1, 1 of 36; 25/36 is still below 0.7.
    assert drawn(logits, Truncation(top_p=0.7), temperature=0.5).keys() == {0, 1}
    assert drawn(logits, Truncation(top_p=0.69), temperature=0.5).keys() == {0}
    # Alone, top_p=0.6 keeps two. After min_p or top_k the first already has 5/8.
    assert drawn(logits, Truncation(top_p=0.6)).keys() == {0, 1}
    assert drawn(logits, Truncation(top_p=0.6, min_p=0.5)).keys() == {0}
    assert drawn(logits, Truncation(top_p=0.6, top_k=2)).keys() == {0}


def test_tokens_as_likely_as_the_last_one_are_kept() -> None:
    logits = torch.tensor([0.1, 0.5, 0.1, 0.1, 0.2]).log()
    for limits in (Truncation(top_k=3), Truncation(top_p=0.75)):
        assert drawn(logits, limits).keys() == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_distribution_is_that_of_transformers(limits: Truncation, temperature: float) -> None:
    # Flat and sharp distributions over more words than the engine sorts first.
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([0.01, 1.0, 2.0, 4.0, 8.0])[:, None]
    logits = torch.randn(5, 2000, generator=generator) * scale
    logits = logits.repeat(40, 1)
    uniform = torch.rand(200, generator=generator)
    ids, logprobs = sample_truncated(
        logits, torch.full((200,), temperature), uniform, cut_of(*[limits] * 200)
    )
    expected = of_transformers(logits, limits, temperature)
    theirs = expected.gather(1, ids[:, None])[:, 0]
    assert torch.allclose(logprobs, theirs, atol=1e-5)  # so none is one that they drop
    # The token at this point of the cumulative distribution of transformers.
    cumulative = expected.double().exp().cumsum(-1)
    place = torch.searchsorted(cumulative, uniform.double()[:, None])[:, 0]
    # Another order of summation may choose the neighbour at a point near a border.
    border = (cumulative.gather(1, place[:, None])[:, 0] - uniform).abs() < 1e-5
    assert ((ids == place) | border).all()
    assert border.float().mean() < 0.1


def test_what_shares_the_batch_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 300, generator=generator) * torch.tensor([1.0, 3.0]).repeat(3)[:, None]
    temperatures = torch.tensor([1.0, 0.7, 1.0, 0.0, 1.0, 0.5])
    uniform = torch.rand(6, generator=generator)
    rows = [
        NO_TRUNCATION,
        Truncation(2),
        Truncation(top_p=0.95),
        NO_TRUNCATION,
        Truncation(min_p=0.01),
        NO_TRUNCATION,
    ]
    numbers = torch.stack([temperatures, uniform, *cut_of(*rows)])
    together = sample_rows(logits, numbers, np.array([bool(row) for row in rows]))
    for i, row in enumerate(rows):
        one = (logits[i : i + 1], temperatures[i : i + 1], uniform[i : i + 1])
        alone = sample_truncated(*one, cut_of(row)) if row else sample_tokens(*one)
        assert (together[0][i], together[1][i]) == (alone[0][0], alone[1][0])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_logits_that_are_not_finite_spoil_their_own_row_only(
    limits: Truncation, bad: float
) -> None:
    logits = torch.zeros(2, 500)
    logits[0, 7] = bad
    points = torch.full((2,), 0.3)
    _, logprobs = sample_truncated(logits, torch.ones(2), points, cut_of(*[limits] * 2))
    assert torch.isfinite(logprobs).tolist() == [False, True]


def test_a_token_without_probability_is_never_drawn() -> None:
    logits = torch.full((100,), -torch.inf)
    logits[[3, 50]] = torch.tensor([0.0, 1.0])
    for limits in LIMITS:
        assert drawn(logits, limits).keys() <= {3, 50}


@pytest.mark.parametrize(
    "wrong", [{"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"min_p": 1.0}, {"min_p": -0.1}]
)
def test_limits_outside_of_their_ranges(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="top_p above 0"):
        Truncation(**wrong)  # type: ignore[arg-type]


def test_the_engine_reports_the_truncated_distribution(tmp_path: Path) -> None:
    model = sharp_model(tmp_path, "qwen3")
    with torch.no_grad():
        model.lm_head.weight.mul_(0.2)  # otherwise only one candidate would remain
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=8)

    settings = {
        str(limits): SamplingParams(16, 0.8, seed=3, truncation=limits) for limits in LIMITS
    }
    settings["greedy"] = SamplingParams(16, 0.0, truncation=LIMITS[0])
    together = gather(*(engine.generate(PROMPT, how, name) for name, how in settings.items()))
    alone = gather(engine.generate(PROMPT, settings[str(LIMITS[0])], "alone"))
    assert alone[0].ids == together[0].ids
    unlikely = 0
    for how, done in zip(settings.values(), together, strict=True):
        plain = plain_logprobs(model, PROMPT, done.ids, how.temperature)
        if how.temperature:
            unlikely += int((plain.argmax(1) != torch.tensor(done.ids)).sum())
            plain = of_transformers(plain, how.truncation, 1.0)
        else:
            assert done.ids == plain.argmax(1).tolist()
        reported = plain.gather(1, torch.tensor(done.ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(done.logprobs), reported, atol=1e-4)
    assert unlikely > 5
