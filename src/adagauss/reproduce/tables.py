"""The tables: our numbers beside the paper's, as Markdown, LaTeX and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adagauss.reproduce.cells import Workshop
from adagauss.reproduce.findings import Found
from adagauss.reproduce.plan import Item
from adagauss.runs.compare import FORMATS, Spread
from adagauss.utils.files import write_atomically

ACCURACY = {"a_last": "A_last", "a_inc": "A_inc"}
TIMES = {"training_min": "training, min", "inference_sec": "inference, s"}
NOTHING = "–"


def table_rows(found: Sequence[Found]) -> list[dict[str, str]]:
    """One line per benchmark and row; every quantity is followed by the paper's."""
    rows = [_line(one, label) for one in found for label in one.outcomes]
    if not any(row["note"] for row in rows):
        return [{key: value for key, value in row.items() if key != "note"} for row in rows]
    return rows


def _line(found: Found, label: str) -> dict[str, str]:
    scores = found.scores(label)
    quoted = found.quoted(label)
    quantities = TIMES if found.item.times else ACCURACY
    line = {"benchmark": found.benchmark, "row": label, "seeds": str(len(scores))}
    for name, title in quantities.items():
        values = list(found.values(label, name).values())
        line[title] = str(Spread.of(values, percent=False)) if values else NOTHING
        line[f"paper {title}"] = _printed(quoted, name)
    line["note"] = _note(found, label)
    return line


def _note(found: Found, label: str) -> str:
    """Why numbers are missing: of some seeds, or of all."""
    problem = found.problems().get(label)
    if problem is None:
        return ""
    absent, done = len(found.outcomes[label]) - len(found.scores(label)), len(found.scores(label))
    return f"{f'{absent} seeds ' if done and absent > 1 else '1 seed ' if done else ''}{problem.kind}: {problem.reason}"


def _printed(quoted: dict[str, object] | None, name: str) -> str:
    if quoted is None or quoted.get(name) is None:
        return NOTHING
    deviation = quoted.get(f"{name}_std")
    return f"{quoted[name]}" + (f" ± {deviation}" if deviation is not None else "")


def caption(item: Item, found: Sequence[Found], shop: Workshop, command: str) -> str:
    """What a table shows, and what it was made with."""
    codes = "; ".join(dict.fromkeys(one.code() for one in found))
    return f"{item.title}; {shop.scale.note}; {codes}; {command}"


def write_table(item: Item, found: Sequence[Found], shop: Workshop, command: str) -> list[Path]:
    """Write the table of an item in every format; returns the files, none if this scale has nothing to show."""
    rows, words, files = table_rows(found), caption(item, found, shop, command), list[Path]()
    if not rows:
        return files
    for ending, written in FORMATS.items():
        path = shop.place(item) / f"table.{ending}"
        write_atomically(path, written(rows, words).encode("utf-8", "backslashreplace"))
        files.append(path)
    return files
