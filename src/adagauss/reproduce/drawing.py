"""The figures of items: through the studies of `adagauss.analysis`, or bars of a table's numbers."""

from __future__ import annotations

from pathlib import Path

from adagauss.analysis.plotting import save_figure
from adagauss.analysis.studies.draw import Drawn, analyse
from adagauss.analysis.studies.provenance import sign
from adagauss.progress import Reporter
from adagauss.reproduce.beside import beside_figure
from adagauss.reproduce.cells import Workshop
from adagauss.reproduce.findings import Found, figure_file
from adagauss.reproduce.working import Datasets
from adagauss.runs.environment import source_digest


def studied(
    found: Found, study: str, shop: Workshop, datasets: Datasets, reporter: Reporter, command: str
) -> Drawn | None:
    """The study of an item on the finished runs of one benchmark; None if there are no runs."""
    groups = {label: [cell.folder for cell in cells] for label, cells in found.cells.items()}
    if not groups:
        return None
    dataset = datasets.of(shop.scale.find(found.where.protocol).stream)
    place = figure_file(shop, found.item, found.where).parent
    drawn = analyse(groups, place, names=[study], dataset=dataset, reporter=reporter, command=command)
    return drawn[0]


def pictured(found: Found, shop: Workshop, command: str) -> Path | None:
    """The numbers of a table as a picture; None if there are none."""
    item = found.item
    figure = beside_figure(found)
    if figure is None:
        return None
    sign(figure, item.title, [shop.scale.note, f"code {source_digest()}"], command)
    path = figure_file(shop, item, found.where, "png")
    save_figure(figure, path)
    return path
