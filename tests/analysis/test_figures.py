"""Figures of classes with unusual names."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from adagauss.analysis.plotting import save_figure
from adagauss.analysis.statistics_figures import gaussians_figure
from adagauss.core.gaussians import ClassGaussians


def test_dollars_and_foreign_letters_in_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    features = torch.randn(40, 3)
    labels = ["a$b_{$", "鳥"] * 20
    memory = ClassGaussians.from_features(features, labels, "full")
    targets = torch.tensor([0, 1] * 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = gaussians_figure(memory, memory, features, targets, "a run of $\\frac$")
        save_figure(figure, tmp_path / "names.png")
    assert (tmp_path / "names.png").stat().st_size > 5000
