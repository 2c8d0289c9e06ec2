"""A page on what the paper claims and what was found here, written from finished results: true by construction."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from adagauss.atomic import write_atomically
from adagauss.reproduce.cells import Workshop, distinct, jobs
from adagauss.reproduce.findings import Found, figure_file, findings
from adagauss.reproduce.plan import Item
from adagauss.reproduce.tables import table_rows
from adagauss.runs.compare import markdown
from adagauss.runs.environment import source_digest
from adagauss.runs.results import RunResult

INTRODUCTION = """# The paper, claim by claim

For every table and figure of AdaGauss (NeurIPS 2024): what the paper claims, what was found here, and whether the claim
holds. This page is written by `adagauss reproduce all --page docs/paper.md` from finished runs; do not edit it. A claim
*holds* or *does not hold* if every seed says so; if seeds disagree, or there is only one, the page says *cannot tell*.
"""
UNMEASURED = "Not measured at this scale."


def write_page(items: Sequence[Item], shop: Workshop, path: Path) -> None:
    """Write the page, and copies of its pictures into the folder ``images/paper`` beside it."""
    wanted = jobs(items, shop)
    found = findings(wanted, shop)
    runs = [cell for cell in distinct(wanted) if isinstance(cell.result(), RunResult)]
    parts = [INTRODUCTION.rstrip(), _scale(shop, len(runs)), _summary(items, found)]
    for item in items:
        parts.append(_section(item, [one for one in found if one.item is item], shop, path.parent))
    write_atomically(path, ("\n\n".join(parts) + "\n").encode())


def _scale(shop: Workshop, runs: int) -> str:
    seeds = ", ".join(map(str, shop.seeds or shop.scale.seeds))
    return (
        f"**{shop.scale.name} scale** ({shop.scale.note}), {runs} finished runs, seeds {seeds} unless a table says "
        f"otherwise, code {source_digest()}:\n\n"
        f"```sh\nadagauss reproduce all --scale {shop.scale.name}\n```"
    )


def _summary(items: Sequence[Item], found: Sequence[Found]) -> str:
    rows = [
        {"item": f"[{item.title}](#{_anchor(item)})", "claim": claim.text, "benchmark": one.benchmark, "verdict": word}
        for item in items
        for one in found
        if one.item is item
        for claim in item.claims
        if (word := claim.check(one).word) != "not measured"
    ]
    return "## All claims\n\n" + (markdown(rows).rstrip() if rows else UNMEASURED)


def _section(item: Item, found: Sequence[Found], shop: Workshop, beside: Path) -> str:
    """Claim, figure, what is seen, verdict."""
    lines = [f"## {item.title}", f"*The paper:* {item.paper}."]
    if reason := item.left_out.get(shop.scale.size):
        lines.append(f"*Here:* {reason}")
    for one in found:
        lines += _benchmark(one, shop, beside)
    measured = [one for one in found if any(one.scores(label) for label in one.outcomes)]
    lines.append(markdown(table_rows(measured)).rstrip() if measured else UNMEASURED)
    return "\n\n".join(lines)


def _benchmark(found: Found, shop: Workshop, beside: Path) -> list[str]:
    lines = []
    picture = figure_file(shop, found.item, found.where, "png")
    if picture.exists():
        name = f"{found.item.name}-{found.where.protocol}.png"
        kept = beside / "images" / "paper" / name
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, kept)
        lines.append(f"![{found.item.title}, {found.benchmark}](images/paper/{name})")
    for claim in found.item.claims:
        verdict = claim.check(found)
        if verdict.word != "not measured":
            lines.append(f"- *{claim.text}*\n  {found.benchmark}: {verdict.reason}. **{_capital(verdict.word)}.**")
    return lines


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _anchor(item: Item) -> str:
    """The name that Markdown gives to the heading."""
    return "".join(letter for letter in item.title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")
