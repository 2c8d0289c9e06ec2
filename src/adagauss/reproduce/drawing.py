"""The figures of items: through the studies of `adagauss.analysis`, or bars of a table's numbers."""

from __future__ import annotations

from pathlib import Path

from adagauss.analysis.plotting import save_figure
from adagauss.analysis.studies.draw import analyse
from adagauss.analysis.studies.provenance import sign
from adagauss.reproduce.beside import beside_figure
from adagauss.reproduce.cells import Workshop
from adagauss.reproduce.findings import Found, figure_file
from adagauss.reproduce.working import Datasets
from adagauss.utils.progress import Reporter


def draw(
    found: Found, shop: Workshop, datasets: Datasets, reporter: Reporter, command: str
) -> tuple[list[Path], str | None]:
    """Draw an item on one benchmark; returns the files, and why there are none."""
    if found.item.study is None:
        return _pictured(found, shop, command), None
    groups = {label: [cell.folder for cell in cells] for label, cells in found.cells.items()}
    if not groups:
        return [], None
    dataset = datasets.of(shop.scale.find(found.where.protocol).stream)
    place = figure_file(shop, found.item, found.where).parent
    drawn = analyse(groups, place, names=[found.item.study], dataset=dataset, reporter=reporter, command=command)[0]
    return list(drawn.files.values()), drawn.missing


def _pictured(found: Found, shop: Workshop, command: str) -> list[Path]:
    """The numbers of a table as a picture, if there are any."""
    figure = beside_figure(found)
    if figure is None:
        return []
    sign(figure, found.item.title, [f"{shop.scale.note}; {found.code()}"], command)
    path = figure_file(shop, found.item, found.where, "png")
    save_figure(figure, path)
    return [path]
