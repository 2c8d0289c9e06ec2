"""The studies of `adagauss analyse` as part of the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from adagauss.analysis.studies import Drawn, analyse, find_study
from adagauss.analysis.studies import studies as all_studies
from adagauss.data.dataset import Dataset
from adagauss.errors import AdagaussError
from adagauss.report.drawings import inlined, themed
from adagauss.report.grouping import Section
from adagauss.report.html import Markup, details, tag
from adagauss.utils.progress import Reporter

SWEEPS = ("beta", "distillation", "ranks-by-distillation", "shrink", "strength")
"""Studies of runs that differ in one setting, of little use for others."""


def chosen(names: str) -> list[str]:
    """Studies by name, separated by commas; ``usual`` are those of any runs, ``none`` and ``all`` speak for themselves.

    >>> chosen("recency, pareto"), chosen("none")
    (['recency', 'pareto'], [])
    """
    if names in ("usual", "all"):
        return [name for name in all_studies() if names == "all" or name not in SWEEPS]
    return [] if names == "none" else [find_study(name.strip()).name for name in names.split(",")]


def studies(section: Section, prefix: str, names: Sequence[str], dataset: Dataset | None, reporter: Reporter) -> Markup:
    """The studies that these runs allow; those that need images only if they are given or were measured before."""
    groups = {group.label: [run.folder for run in group.runs if run.has_learner] for group in section.groups}
    groups = {label: folders for label, folders in groups.items() if folders}
    if not groups:
        return _card(tag("p", "The learners of these runs were not kept, so nothing can be drawn of them."))
    with TemporaryDirectory() as place, themed():
        try:
            drawn = analyse(groups, Path(place), names=names, dataset=dataset, reporter=reporter)
        except AdagaussError as error:
            return _card(tag("p", f"They could not be drawn: {error}", class_="note"))
        figures = [_figure(one, f"{prefix}-{one.name}") for one in drawn if one.missing is None]
    return _card(*figures, _missing([one for one in drawn if one.missing is not None]))


def _card(*content: Markup | None) -> Markup:
    return tag("div", tag("h3", "Studies"), *content, class_="card")


def _figure(one: Drawn, key: str) -> Markup:
    study = find_study(one.name)
    picture = inlined(one.files["svg"].read_text(encoding="utf-8"), key, one.title)
    paper = f" In the paper: {study.paper}." if study.paper else None
    note = f" {one.note[:1].upper()}{one.note[1:]}." if one.note else None
    caption = tag("figcaption", study.claim, paper, note)
    return tag("figure", tag("h4", one.title), caption, picture, class_="drawn", tabindex="0")


def _missing(left: Sequence[Drawn]) -> Markup | None:
    if not left:
        return None
    items = (tag("li", tag("b", one.title), f": {one.missing}") for one in left)
    return details(f"Not drawn: {len(left)}", tag("ul", *items))
