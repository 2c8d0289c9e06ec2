"""A page on what the paper claims and what was found here, written from finished results: true by construction."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from adagauss.analysis.studies.base import find_study
from adagauss.reproduce.cells import Cell, Workshop, distinct, jobs
from adagauss.reproduce.claims import Verdict
from adagauss.reproduce.findings import Found, figure_file, findings
from adagauss.reproduce.items.beyond import BEYOND
from adagauss.reproduce.plan import Item
from adagauss.reproduce.tables import table_rows
from adagauss.runs.compare import markdown
from adagauss.runs.results import RunResult
from adagauss.utils.files import write_atomically

INTRODUCTION = """# The paper, claim by claim

For every table and figure of AdaGauss (NeurIPS 2024): what the paper claims, what was found here, and whether the claim
holds. This page is written by `adagauss reproduce all --page docs/paper.md` from finished runs; do not edit it. A claim
*holds* or *does not hold* if every seed says so; if seeds disagree, or there is only one, the page says *cannot tell*.
Figures say in their last lines what they were made from.
"""
UNMEASURED = "Not measured yet."
LINKED = {"tex": "LaTeX", "csv": "CSV"}
"""Formats of a table that the page links to; Markdown is the page itself."""


def write_page(items: Sequence[Item], shop: Workshop, path: Path) -> None:
    """Write the page, and copies of its pictures and tables into the folders ``images/paper`` and ``tables/paper``."""
    wanted = jobs(items, shop)
    found = findings(wanted, shop)
    parts = [INTRODUCTION.rstrip(), _scale(shop, distinct(wanted)), _summary(items, found)]
    for item in items:
        parts.append(_section(item, [one for one in found if one.item is item], shop, path.parent))
    write_atomically(path, ("\n\n".join(parts) + "\n").encode())


def _scale(shop: Workshop, cells: Sequence[Cell]) -> str:
    done = [result for cell in cells if isinstance(result := cell.result(), RunResult)]
    hours = sum(sum(result.cost.seconds.values()) for result in done) / 3600
    seeds = ", ".join(map(str, shop.seeds or shop.scale.seeds))
    took = f" and took {hours:.1f} hours, one after another" if done else ""
    lines = [
        f"**Scale {shop.scale.name}** ({shop.scale.note}). {len(done)} of {len(cells)} runs are finished{took}; seeds "
        f"{seeds} unless a table says otherwise.",
        f"```sh\nadagauss reproduce all --scale {shop.scale.name}\n```",
    ]
    return "\n\n".join([*lines, shop.scale.about.rstrip()] if shop.scale.about else lines)


def _summary(items: Sequence[Item], found: Sequence[Found]) -> str:
    """All verdicts: first on the paper's claims, then on what is expected beyond it."""
    parts = []
    for title, beyond in (("All claims", False), ("Beyond the paper", True)):
        rows = [
            {
                "item": f"[{item.title}](#{_anchor(item)})",
                "claim": claim.text,
                "benchmark": one.benchmark,
                "verdict": f"{verdict.word} ({_evidence(verdict)})",
            }
            for item in items
            for one in found
            if one.item is item and (item.paper == BEYOND) == beyond
            for claim in item.claims
            if (verdict := claim.check(one)).word != "not measured"
        ]
        if not rows and beyond:
            continue
        counts = Counter(row["verdict"].partition(" (")[0] for row in rows)
        counted = f"Of {len(rows)}: {', '.join(f'{word}: {count}' for word, count in counts.most_common())}."
        heading = "##" if not beyond else "###"
        parts.append(f"{heading} {title}\n\n" + (f"{counted}\n\n{markdown(rows).rstrip()}" if rows else UNMEASURED))
    return "\n\n".join(parts)


def _evidence(verdict: Verdict) -> str:
    """What the seeds say: the last part of a reason."""
    return verdict.reason.rpartition("; ")[2]


def _section(item: Item, found: Sequence[Found], shop: Workshop, beside: Path) -> str:
    """What the paper claims, the figure, what is seen and the verdict, the numbers."""
    lines = [f"## {item.title}"]
    if item.paper == BEYOND:
        lines.append(f"*Beyond the paper.* {find_study(item.study).claim if item.study else ''}".rstrip())
    else:
        lines.append(f"*The paper:* {item.paper}.")
    if reason := item.left_out.get(shop.scale.size):
        lines.append(f"*Here:* {reason}")
    if not item.where[shop.scale.size]:
        return "\n\n".join(lines)
    lines += [picture for one in found if (picture := _picture(one, shop, beside))]
    verdicts = [_verdicts(text, item, found) for text in dict.fromkeys(claim.text for claim in item.claims)]
    lines += ["\n".join(verdicts)] if verdicts else []
    measured = [one for one in found if any(one.scores(label) for label in one.outcomes)]
    lines += [_numbers(item, measured, shop, beside)] if measured else [] if verdicts else [UNMEASURED]
    return "\n\n".join(lines)


def _numbers(item: Item, measured: Sequence[Found], shop: Workshop, beside: Path) -> str:
    """The table, and copies of its files for whoever needs another format."""
    shown = markdown(table_rows(measured)).rstrip()
    links = []
    for ending, name in LINKED.items():
        file = shop.place(item) / f"table.{ending}"
        if item.table and file.exists():
            kept = _copied(file, beside / "tables" / "paper" / f"{item.name}.{ending}")
            links.append(f"[{name}]({kept.relative_to(beside).as_posix()})")
    return f"{shown}\n\nThis table as {', '.join(links)}." if links else shown


def _copied(file: Path, kept: Path) -> Path:
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, kept)
    return kept


def _picture(found: Found, shop: Workshop, beside: Path) -> str | None:
    picture = figure_file(shop, found.item, found.where, "png")
    if not picture.exists():
        return None
    name = f"{found.item.name}-{found.where.protocol}.png"
    _copied(picture, beside / "images" / "paper" / name)
    return f"![{found.item.title}, {found.benchmark}](images/paper/{name})"


def _verdicts(text: str, item: Item, found: Sequence[Found]) -> str:
    """A claim, and what every benchmark says of it; a claim may be checked on rows that only one scale has."""
    lines = [f"- *{text}*"]
    for claim in (claim for claim in item.claims if claim.text == text):
        for one in found:
            verdict = claim.check(one)
            if verdict.word != "not measured":
                lines.append(f"  {one.benchmark}: {verdict.reason}. **{_capital(verdict.word)}.**")
    return "\n".join(lines if len(lines) > 1 else [*lines, f"  {UNMEASURED}"])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _anchor(item: Item) -> str:
    """The name that Markdown gives to the heading."""
    return "".join(letter for letter in item.title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")
