"""From run folders to one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from adagauss.data.dataset import Dataset
from adagauss.data.stream import StreamConfig
from adagauss.errors import ConfigError
from adagauss.report.figures import figures
from adagauss.report.gathering import LeftOut, gather, run_folders
from adagauss.report.grouping import Section, arrange
from adagauss.report.html import Markup
from adagauss.report.page import page
from adagauss.report.studies import chosen, studies
from adagauss.utils.files import write_atomically
from adagauss.utils.progress import Reporter


@dataclass(frozen=True)
class Written:
    """What a report shows, and what not."""

    path: Path
    sections: Sequence[Section]
    left_out: Sequence[LeftOut]


Data = Callable[[StreamConfig], Dataset]


def write_report(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    study: str = "usual",
    data: Data | None = None,
    reporter: Reporter | None = None,
) -> Written:
    """Write one HTML file about these runs; it needs no network and no script.

    Runs of different protocols have their own parts of the page, and a run that cannot be read, or repeats another
    one, is named there with the reason. If none can be shown, nothing is written.

    Args:
        runs: run folders, or folders that hold some.
        out: the file; an older one is replaced when the new one is complete.
        study: names of studies, separated by commas, or usual, all or none (no figures but curves).
        data: reads the data of a stream, to measure what studies need of it; without it, those are drawn that need no
            images, or were measured before.
        reporter: told about the progress.
    """
    reporter = reporter or Reporter()
    names = chosen(study)
    folders = run_folders([Path(run) for run in runs])
    with reporter.progress("reading runs", len(folders)) as advance:
        gathered, unreadable = gather(folders, advance)
    sections, repeated = arrange(gathered)
    without = [*unreadable, *repeated]
    if not sections:
        raise ConfigError(f"none of the runs can be shown: {without[0].reason}")
    drawn: list[tuple[Markup, ...]] = []
    with reporter.progress("drawing", len(sections)) as advance:
        for place, section in enumerate(sections):
            dataset = data(section.runs[0].config.stream) if data else None
            prefix = f"p{place}"
            both = (studies(section, prefix, names, dataset, reporter), figures(section, prefix)) if names else ()
            drawn.append(both)
            advance(section.title)
    path = Path(out)
    # A name may hold bytes that are no UTF-8; they are escaped where it is shown.
    write_atomically(path, page(sections, without, drawn).encode("utf-8", "backslashreplace"))
    return Written(path, sections, without)
