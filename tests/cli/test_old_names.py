"""Old names of commands and options work, with a note."""

from __future__ import annotations

from pathlib import Path

import pytest

from adagauss.cli.old_names import current_words
from tests.cli.conftest import Command


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("methods adagauss --preset paper", "list methods adagauss --preset paper"),
        ("datasets fetch mnist --data-root data", "list datasets --fetch mnist --data-root data"),
        ("merge a b --into c --quiet", "teach c a b --quiet"),
        ("gather m x.tar", "teach m x.tar"),
        ("replay RUN --like adagauss+", "rescore RUN --parts-from adagauss+"),
        ("teach m photos --like n", "teach m photos --features-from n"),
        ("rename m a b --join -- --join", "rename m a b --merge -- --join"),
        ("run --sizes 4,3,3 --classes=10", "run --tasks 4,3,3 --set stream.classes=10"),
        ("run --precision 16-mixed --compile", "run --set runtime.precision=16-mixed --set runtime.compile=true"),
        ("compare --ray auto --log tensorboard", "compare --engine ray=auto --logger tensorboard"),
        ("teach m photos --method adagauss", "teach m photos --method adagauss"),
    ],
)
def test_old_words_become_new_ones(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert current_words(old.split()) == new.split()
    assert (capsys.readouterr().err != "") == (old != new)


def test_an_old_command_prints_a_note_and_works(adagauss: Command, tmp_path: Path) -> None:
    outcome = adagauss("protocols")
    assert outcome.code == 0
    assert "cifar100-10" in outcome.out
    assert outcome.said == "adagauss: `adagauss protocols` is deprecated: use `adagauss list protocols`"
