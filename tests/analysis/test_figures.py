"""Figures of classes with unusual names."""

from __future__ import annotations

import warnings
from pathlib import Path

from adagauss.analysis.figures import confusion_figure
from adagauss.analysis.plotting import save_figure


def test_dollars_and_foreign_letters_in_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = confusion_figure([[3, 1], [2, 2]], ["a$b_{$", "鳥"], "a run of $\\frac$")
        save_figure(figure, tmp_path / "names.png")
    assert (tmp_path / "names.png").stat().st_size > 5000
