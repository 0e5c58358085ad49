"""Log-probabilities and entropies, compared with hand-computed values, finite differences and
torch.
"""

import math

import pytest
import torch
from torch import Tensor

from fieldcraft.train.logprobs import logp_and_entropy


def test_logprob_and_entropy_of_a_known_distribution() -> None:
    logits_TV = torch.tensor([[0.5, 0.25, 0.25], [0.5, 1e-30, 0.5]]).log() + 7.0
    logp_T, entropy_T = logp_and_entropy(logits_TV, torch.tensor([1, 0]))
    assert logp_T.tolist() == pytest.approx([math.log(0.25), math.log(0.5)])
    assert entropy_T.tolist() == pytest.approx([1.5 * math.log(2), math.log(2)])


def _scores(logits_TV: Tensor, targets_T: Tensor, part: slice) -> tuple[Tensor, ...]:
    return logp_and_entropy(logits_TV, targets_T)[part]


def test_logprob_and_entropy_have_their_gradients() -> None:
    """Finite differences check each alone and both together; torch checks a large case."""
    torch.manual_seed(0)
    logits_TV = torch.randn(5, 7, dtype=torch.double, requires_grad=True)
    targets_T = torch.arange(5)
    for part in (slice(0, 1), slice(1, 2), slice(0, 2)):
        assert torch.autograd.gradcheck(
            lambda x, p=part: logp_and_entropy(x, targets_T)[p], logits_TV
        )
    large_TV = (30 * torch.randn(9, 1000)).requires_grad_()
    own, plain = logp_and_entropy(large_TV, torch.arange(9)), large_TV.log_softmax(-1)
    torch.testing.assert_close(own[0], plain[torch.arange(9), torch.arange(9)])
    torch.testing.assert_close(own[1], -(plain.exp() * plain).sum(-1), rtol=1e-4, atol=1e-4)
