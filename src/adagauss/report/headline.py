"""The results first: one number per method with its spread over seeds, the curve, and every metric."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from adagauss.experiments.compare import Spread
from adagauss.experiments.metrics import METRICS
from adagauss.experiments.published import published
from adagauss.methods import method_info
from adagauss.report.charts import Line, percent_chart, tone
from adagauss.report.commands import follows_paper
from adagauss.report.grouping import Group, Section
from adagauss.report.html import Markup, details, join, name, table, tag

MOST_CARDS = 6
MEANINGS = {
    "A_last": "accuracy on all classes after the last task, every task weighted equally, without being told the task",
    "A_inc": "mean over the tasks of the accuracy on all classes seen by then",
    "forgetting": "mean over old tasks of the best accuracy a task ever had minus the one at the end (lower is better)",
    "plasticity": "mean accuracy on a task right after it was learned, from the second task on",
    "backward transfer": "mean over old tasks of the accuracy at the end minus the one right after learning",
    "per image": "every test image, instead of every task, has the same weight",
    "task-aware": "accuracy if the task of each image were known; the gap to A_last is confusion between tasks",
    "±": "standard deviation over seeds (n − 1); a single run has none",
}


def headline(section: Section) -> Markup:
    """What came out, for a reader who reads nothing else."""
    tasks = max(run.tasks for run in section.runs)
    lines = [_line(group) for group in section.groups]
    return join(
        [
            tag("div", *map(_card, range(MOST_CARDS), section.groups), class_="best"),
            tag(
                "div",
                tag("h3", "Accuracy while learning"),
                percent_chart(
                    lines, tasks, across="tasks learned", up="accuracy on all seen classes, % (mean over seeds)"
                ),
                tag("p", "Bands are one standard deviation over seeds.", class_="quiet") if _has_band(lines) else None,
                details("Numbers of the curve", _curve_table(section, lines, tasks)),
                class_="card",
            ),
            tag("div", tag("h3", "All measures, in %"), _metrics_table(section), _meanings(), class_="card"),
        ]
    )


def _card(index: int, group: Group) -> Markup:
    last, inc = (Spread.of([run.metrics[key] for run in group.runs]) for key in ("a_last", "a_inc"))
    number = tag("b", f"{last.mean:.1f}", tag("small", " %" + _deviation(last)))
    seeds = f"{len(group.runs)} seeds" if len(group.runs) > 1 else "one seed, so no spread"
    state = None if group.finished else f"; unfinished: after {group.first.done} of {group.first.tasks} tasks"
    return tag(
        "div",
        tag("div", name(group.label), class_="who"),
        number,
        tag("div", "A_last", " · A_inc ", f"{inc.mean:.1f}", _deviation(inc), class_="quiet"),
        tag("div", seeds, state, class_="quiet"),
        class_=tone(index),
    )


def _deviation(spread: Spread) -> str:
    return f" ± {spread.deviation:.1f}" if spread.deviation is not None else ""


def _line(group: Group) -> Line:
    curves = [[100 * value for value in run.curve] for run in group.runs]
    means = [statistics.fmean(values) for values in zip(*curves, strict=True)]
    several = len(curves) > 1
    spread = [statistics.stdev(values) for values in zip(*curves, strict=True)] if several else None
    return Line(group.label, means, spread)


def _has_band(lines: Sequence[Line]) -> bool:
    return any(line.deviations is not None for line in lines)


def _curve_table(section: Section, lines: Sequence[Line], tasks: int) -> Markup:
    def row(line: Line) -> Iterator[object]:
        yield name(line.label)
        for task in range(tasks):
            if task >= len(line.values):
                yield "–"
            elif line.deviations is None:
                yield f"{line.values[task]:.1f}"
            else:
                yield str(Spread(line.values[task], line.deviations[task]))

    heads = ["after task", *range(1, tasks + 1)]
    return table(heads, [list(row(line)) for line in lines], label=f"accuracy after each task: {section.title}")


def _metrics_table(section: Section) -> Markup:
    papers = {group.label: _of_paper(group) for group in section.groups}
    quoted = any(papers.values())
    heads = ["method", "seeds", *(metric.title for metric in METRICS)]
    rows = []
    for group in section.groups:
        spreads = [Spread.of([run.metrics[one.name] for run in group.runs], one.percent) for one in METRICS]
        seeds = ", ".join(map(str, group.seeds))
        rows.append([name(group.label), seeds, *map(str, spreads), *([papers[group.label] or "–"] if quoted else [])])
    if quoted:
        heads.append("the paper's A_last / A_inc")
    return table(heads, rows, label=f"all measures: {section.title}", words=(0, 1))


def _of_paper(group: Group) -> str | None:
    """The paper's numbers, if the runs follow its protocol without changes."""
    run = group.first
    if not run.finished or run.config.scale != "paper":
        return None
    method = run.config.method_name
    found = published(method_info(method).title, method, run.config.stream.dataset, run.sizes, run.config.scale)
    return f"{found.a_last} / {found.a_inc}" if found and follows_paper(run.config) else None


def _meanings() -> Markup:
    pairs = [part for word, meaning in MEANINGS.items() for part in (tag("dt", word), tag("dd", meaning))]
    return details("What the measures mean", tag("dl", *pairs))
