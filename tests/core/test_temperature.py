"""The NLL at all temperatures at once, against the softmax at each of them."""

from __future__ import annotations

import pytest
import torch

from adagauss.core.calibration import RELATIVE, TEMPERATURES, Calibration, nll


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("classes", [1, 2, 7])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_the_nll_is_that_of_the_softmax_at_each_temperature(relative: bool, classes: int, size: float) -> None:
    chance = torch.Generator().manual_seed(classes)
    scores = size * torch.randn(20, classes, generator=chance)
    targets = torch.randint(classes, (20,), generator=chance)
    right, second = nll(scores, targets, relative)
    exact = Calibration(1.0, relative)(scores.double())
    for place, temperature in enumerate(RELATIVE if relative else TEMPERATURES):
        expected = -torch.log_softmax(exact / temperature, 1)
        torch.testing.assert_close(right[:, place], expected[torch.arange(20), targets])
        torch.testing.assert_close(second[:, place], expected.sort(1).values[:, min(1, classes - 1)])
