"""A page on what the paper claims and what was found here, written from finished results: true by construction."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from adagauss.atomic import write_atomically
from adagauss.reproduce.cells import Workshop, distinct, jobs
from adagauss.reproduce.findings import Found, figure_file, findings
from adagauss.reproduce.plan import Item
from adagauss.reproduce.tables import table_rows
from adagauss.runs.compare import markdown
from adagauss.runs.results import RunResult

INTRODUCTION = """# The paper, claim by claim

For every table and figure of AdaGauss (NeurIPS 2024): what the paper claims, what was found here, and whether the claim
holds. This page is written by `adagauss reproduce all --page docs/paper.md` from finished runs; do not edit it. A claim
*holds* or *does not hold* if every seed says so; if seeds disagree, or there is only one, the page says *cannot tell*.
"""
UNMEASURED = "Not measured yet."


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
        f"**Scale {shop.scale.name}** ({shop.scale.note}): {runs} finished runs, seeds {seeds} unless a table says "
        f"otherwise.\n\n"
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
    if not rows:
        return f"## All claims\n\n{UNMEASURED}"
    counts = Counter(row["verdict"] for row in rows)
    counted = ", ".join(f"{word}: {count}" for word, count in counts.most_common())
    return f"## All claims\n\nOf {len(rows)}: {counted}.\n\n{markdown(rows).rstrip()}"


def _section(item: Item, found: Sequence[Found], shop: Workshop, beside: Path) -> str:
    """What the paper claims, the figure, what is seen and the verdict, the numbers."""
    lines = [f"## {item.title}", f"*The paper:* {item.paper}."]
    if reason := item.left_out.get(shop.scale.size):
        lines.append(f"*Here:* {reason}")
    lines += [picture for one in found if (picture := _picture(one, shop, beside))]
    verdicts = [_verdicts(text, item, found) for text in dict.fromkeys(claim.text for claim in item.claims)]
    lines += ["\n".join(verdicts)] if verdicts else []
    measured = [one for one in found if any(one.scores(label) for label in one.outcomes)]
    lines += [markdown(table_rows(measured)).rstrip()] if measured else [] if verdicts else [UNMEASURED]
    return "\n\n".join(lines)


def _picture(found: Found, shop: Workshop, beside: Path) -> str | None:
    picture = figure_file(shop, found.item, found.where, "png")
    if not picture.exists():
        return None
    name = f"{found.item.name}-{found.where.protocol}.png"
    kept = beside / "images" / "paper" / name
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(picture, kept)
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
