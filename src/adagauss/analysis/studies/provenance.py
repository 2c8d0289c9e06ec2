"""What a figure must say about itself: protocol, scale, seeds, code and command; and which runs may share one."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from adagauss.analysis.measured import Measured
from adagauss.analysis.plotting import shown
from adagauss.analysis.studies.base import Groups
from adagauss.errors import ConfigError
from adagauss.experiments.environment import code_name
from adagauss.experiments.run import ProtocolFacts
from adagauss.utils.progress import escape_control_chars

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOOTER_SIZE = 6.5
LETTERS_PER_INCH = 19.0
"""At the footer's size."""
LINE = 0.125
"""Inches."""
LONGEST_COMMAND = 400
MOST_CODES = 2


def check_together(groups: Groups) -> None:
    """Refuse runs whose numbers do not compare: other data, tasks or scale; within a group, other settings."""
    for label, runs in groups.items():
        others = [run for run in runs if run.config.digest() != runs[0].config.digest()]
        if others:
            raise ConfigError(
                f"{others[0].path} has other settings than {runs[0].path}, and both are in the group {label!r}: "
                "give each configuration a group of its own"
            )
        seeds = [run.seed for run in runs]
        again = [run for place, run in enumerate(runs) if run.seed in seeds[:place]]
        if again:
            raise ConfigError(
                f"{again[0].path} has the settings and the seed of another run in the group {label!r}, so the two are "
                "no evidence of spread: give only one of them"
            )
    runs = all_runs(groups)
    for run in runs[1:]:
        if run.config.scale != runs[0].config.scale or run.config.stream != runs[0].config.stream:
            raise ConfigError(
                f"{run.path} ({protocol_of(run).title}) and {runs[0].path} ({protocol_of(runs[0]).title}) differ in "
                "their data, tasks or scale, so one figure of both would mislead: analyse them separately"
            )


def all_runs(groups: Groups) -> list[Measured]:
    """The runs of all groups."""
    return [run for runs in groups.values() for run in runs]


def protocol_of(run: Measured) -> ProtocolFacts:
    """The protocol of a run, whether it is finished or not."""
    planned = (*run.sizes, *run.sizes[-1:] * (run.planned - run.finished))
    stream = run.config.stream
    return ProtocolFacts(dataset=stream.dataset, scale=run.config.scale, tasks=planned, classes=(), test_images=0)


def unfinished(groups: Groups) -> str:
    """A sentence on runs that have not finished all tasks; empty if all have."""
    behind = [run for run in all_runs(groups) if run.finished < run.planned]
    told = ", ".join(f"{run.path.name} ({run.finished} of {run.planned} tasks)" for run in behind[:3])
    more = f" and {len(behind) - 3} more" if len(behind) > 3 else ""
    return f"unfinished, drawn as far as they go: {told}{more}" if behind else ""


def code_of(groups: Groups) -> str:
    """Version and digest of the code that made the runs; several are told apart."""
    found = sorted({code_name(run.environment) for run in all_runs(groups)})
    if len(found) == 1:
        return f"adagauss {found[0]}"
    told = f": adagauss {'; '.join(found)}" if len(found) <= MOST_CODES else ""
    return f"runs made by {len(found)} different states of the code{told}"


def seeds_of(groups: Groups) -> str:
    """Seeds of the runs; where groups have different ones, how many each has."""
    by_group = {tuple(sorted(run.seed for run in runs)) for runs in groups.values()}
    if len(by_group) == 1:
        seeds = next(iter(by_group))
        return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    counts = sorted({len(seeds) for seeds in by_group})
    return (
        f"{counts[0]} to {counts[-1]} seeds per line"
        if len(counts) > 1
        else f"{counts[0]} seed{'s' * (counts[0] > 1)} per line"
    )


def summary(groups: Groups) -> str:
    """Protocol, scale, seeds and code, in one line."""
    first = all_runs(groups)[0]
    protocol = protocol_of(first)
    scale = "" if first.config.scale == "cpu" else f", {first.config.scale} scale"
    title = escape_control_chars(protocol.title)
    return f"{title}{scale}; {sum(protocol.tasks)} classes; {seeds_of(groups)}; {code_of(groups)}"


def sign(figure: Figure, title: str, lines: Iterable[str], command: str) -> None:
    """Put a title above a figure, and below it lines on where it comes from, in a strip that is added for them."""
    width, height = figure.get_size_inches()
    wrapped = [part for line in lines if line for part in _wrapped(line, width)]
    if command:
        wrapped += _wrapped(escape_control_chars(command)[:LONGEST_COMMAND], width)
    strip = LINE * len(wrapped) + 0.1
    figure.set_size_inches(width, height + strip)
    share = strip / (height + strip)
    engine = figure.get_layout_engine()
    assert engine is not None, "new_figure sets one"
    engine.set(rect=(0, share, 1, 1 - share))  # type: ignore[call-arg]  # the constrained layout takes it
    figure.suptitle(shown(title, 120), fontsize=11)
    figure.text(
        0.008,
        share * (1 - 0.05 / strip),
        "\n".join(line.replace("$", r"\$") for line in wrapped),
        fontsize=FOOTER_SIZE,
        color="#555555",
        va="top",
        linespacing=1.15,
    )


def _wrapped(line: str, width: float) -> Sequence[str]:
    return textwrap.wrap(line, max(30, int(width * LETTERS_PER_INCH)), break_on_hyphens=False)
