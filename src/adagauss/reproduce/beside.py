"""Pictures of a table: our numbers and the paper's, side by side, each on its own axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from adagauss.analysis.plotting import new_figure, set_title, shown
from adagauss.experiments.compare import Spread
from adagauss.reproduce.claims import BySeed
from adagauss.reproduce.findings import Found
from adagauss.reproduce.tables import ACCURACY, TIMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def beside_figure(found: Found) -> Figure | None:
    """Bars of the table's quantities by row, ours left and the paper's right; None if nothing was measured.

    The two scales differ, so they do not share an axis: what can be compared is the order.
    """
    labels = [label for label in found.outcomes if found.scores(label)]
    if not labels:
        return None
    together = [{name: title} for name, title in TIMES.items()] if found.item.times else [ACCURACY]
    quoted = any(found.printed(label, name) is not None for label in labels for panel in together for name in panel)
    figure = new_figure(3.0 + 3.0 * len(together) * (1 + quoted), 1.4 + 0.34 * len(labels))
    panels = figure.subplots(1, len(together) * (1 + quoted), sharey=True, squeeze=False)[0]
    for place, quantities in enumerate(together):
        _panel(panels[place], [[found.values(label, name) for label in labels] for name in quantities], quantities)
        if quoted:
            axes = panels[place + len(together)]
            _panel(axes, [[_printed(found, label, name) for label in labels] for name in quantities], quantities)
            set_title(axes, "paper")
    seeds = max(len(found.scores(label)) for label in labels)
    set_title(panels[0], f"{found.benchmark}, {seeds} seed{'s' * (seeds > 1)}")
    panels[0].set_yticks(range(len(labels)), [shown(label, 44) for label in labels], fontsize=8)
    panels[0].invert_yaxis()
    if len(together) == 1:
        figure.legend(*panels[0].get_legend_handles_labels(), fontsize=7, loc="outside right upper")
    return figure


def _printed(found: Found, label: str, name: str) -> Spread | None:
    row = found.quoted(label) or {}
    return None if row.get(name) is None else Spread(row[name], row.get(f"{name}_std"))


def _panel(axes: Axes, bars: Sequence[Sequence[Spread | BySeed | None]], quantities: Mapping[str, str]) -> None:
    height = 0.76 / len(bars)
    for place, (row, title) in enumerate(zip(bars, quantities.values(), strict=True)):
        for number, entry in enumerate(row):
            spread = Spread.of(list(entry.values()), percent=False) if isinstance(entry, Mapping) and entry else entry
            if isinstance(spread, Spread):
                axes.barh(
                    number + (place - (len(bars) - 1) / 2) * height,
                    spread.mean,
                    height,
                    xerr=spread.deviation,  # one seed has none
                    label=title if not number else None,
                    color=f"C{place}",
                    error_kw={"elinewidth": 0.8},
                )
    axes.set_xlabel(next(iter(quantities.values())) if len(quantities) == 1 else "accuracy, %", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(alpha=0.3, axis="x")
