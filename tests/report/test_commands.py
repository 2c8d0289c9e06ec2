"""The command shown for a run gives its very configuration."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer.main

from adagauss.analysis.report import command, follows_paper
from adagauss.cli import app
from adagauss.cli.running import _resolve
from adagauss.core.config import plain
from adagauss.data.stream import StreamConfig
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.protocols import protocol
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import RuntimeConfig

DIGITS = StreamConfig(dataset="digits")
CONFIGS = {
    "default": make_config("adagauss", DIGITS, seed=3),
    "preset": make_config("adagauss", DIGITS, preset="paper"),
    "another part": make_config("adagauss", DIGITS, settings={"drift.kind": "affine", "classifier.tied": 0.5}),
    "epochs": make_config("finetune", StreamConfig(dataset="digits", sizes=(4, 3, 3)), epochs=2, diagnostics="none"),
    "off": make_config("adagauss", DIGITS, settings={"representation.later.clip_norm": None}),
    "order": make_config("exact", StreamConfig(dataset="digits", class_order=tuple("9876543210"), first=4, tasks=3)),
    "seeded": make_config(
        "frozen",
        StreamConfig(dataset="digits", class_order="seeded", class_order_seed=7),
        runtime=RuntimeConfig(device="cpu"),
    ),
}


def resolved(line: str) -> RunConfig:
    program: Any = typer.main.get_command(app)
    first, name, *words = shlex.split(line)
    assert first == "adagauss"
    with program.commands[name].make_context(name, words) as context:
        return _resolve(context, Reporter())[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_command_gives_the_configuration(name: str) -> None:
    line = command(CONFIGS[name])
    assert line is not None
    assert plain(resolved(line)) == plain(CONFIGS[name])


def test_a_protocol_is_named_and_the_paper_is_quoted_only_without_changes() -> None:
    chosen = protocol("cifar100-10")
    same = make_config("adagauss", chosen.stream, protocol=chosen)
    changed = make_config("adagauss", chosen.stream, protocol=chosen, settings={"drift.kind": "affine"})
    assert command(same) == "adagauss run --method adagauss --protocol cifar100-10 --seed 0"
    assert follows_paper(same)
    assert not follows_paper(changed)


def test_what_options_cannot_give_has_no_command() -> None:
    numbers = StreamConfig(dataset="digits", class_order=(9, 8, 7, 6, 5, 4, 3, 2, 1, 0))
    assert command(make_config("exact", numbers)) is None
    assert command(CONFIGS["default"].model_copy(update={"scale": "cpu"})) is None
