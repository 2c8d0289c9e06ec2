"""Cost: time by stage, speed, and everything that is kept of old classes, to the byte."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from adagauss.core.learn import Learner
from adagauss.experiments.compare import Spread
from adagauss.kept import kept, single_images
from adagauss.methods import method_info
from adagauss.report.charts import tone
from adagauss.report.gathering import Gathered
from adagauss.report.grouping import Group, Section
from adagauss.report.html import Markup, details, join, name, table, tag

STAGES = {
    "representation": "training the network",
    "drift": "following the drift",
    "memory": "statistics of new classes",
    "classifier": "fitting the classifier",
    "evidence": "measuring confidence",
    "evaluation": "answering the test images",
}


def cost(section: Section) -> Markup:
    """Time and speed of each method."""
    return tag(
        "div",
        tag("h3", "Time"),
        _bars(section.groups),
        _legend(section.groups),
        table(
            _time_heads(section.groups), [_time_row(group, section.groups) for group in section.groups], label="time"
        ),
        tag("p", _caution(section.runs), class_="quiet"),
        class_="card",
    )


def storage(section: Section) -> Markup:
    """What is stored after the last task."""
    rows = []
    inside = []
    for group in section.groups:
        run = group.first
        learner = run.learner()
        network = "unknown"
        if learner is not None:
            state = learner.network.state_dict().values()
            network = size(sum(tensor.numel() * tensor.element_size() for tensor in state))
            inside.append(details(name(group.label), _kept(learner, run.config.method_name)))
        rows.append([name(group.label), f"{run.cost.bytes_per_class:,}", size(run.cost.other_state_bytes), network])
    heads = ["method", "bytes per class", "other state", "network"]
    return tag(
        "div",
        tag("h3", "What is stored"),
        table(heads, rows, label=f"what is stored: {section.title}"),
        tag(
            "p",
            "After the last task. Bytes per class: statistics of each class. Other state: what the parts of the method "
            "keep beside the network, such as running sums. No image is kept, and no feature of a single one, except "
            "where it is said below.",
            class_="quiet",
        ),
        *inside,
        class_="card",
    )


def size(count: int) -> str:
    """Bytes in a readable unit.

    >>> size(900), size(2_560), size(3 * 2**20)
    ('900 B', '2.5 KiB', '3.0 MiB')
    """
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 2**20 else f"{count / 2**20:.1f} MiB"


def _stages(groups: Sequence[Group]) -> list[str]:
    present = dict.fromkeys(stage for group in groups for run in group.runs for stage in run.cost.seconds)
    return [*(stage for stage in STAGES if stage in present), *(stage for stage in present if stage not in STAGES)]


def _seconds(group: Group, stage: str) -> float:
    return statistics.fmean(run.cost.seconds.get(stage, 0.0) for run in group.runs)


def _bars(groups: Sequence[Group]) -> Markup:
    """One bar per method, divided into stages; the slowest fills the width."""
    stages = _stages(groups)
    slowest = max(sum(_seconds(group, stage) for stage in stages) for group in groups) or 1.0
    rows = []
    for group in groups:
        parts = [
            tag("i", class_=tone(place), style=f"width:{100 * _seconds(group, stage) / slowest:.2f}%")
            for place, stage in enumerate(stages)
        ]
        rows.append(
            [name(group.label), tag("td", tag("div", *parts, class_="stages", aria_hidden="true"), width="70%")]
        )
    return table(["method", "seconds, all tasks"], rows, label="time by stage", words=(0, 1))


def _legend(groups: Sequence[Group]) -> Markup:
    stages = _stages(groups)
    keys = (
        tag("li", tag("span", class_=f"swatch {tone(place)}"), STAGES.get(stage, stage))
        for place, stage in enumerate(stages)
    )
    return tag("ul", *keys, class_="legend")


def _time_heads(groups: Sequence[Group]) -> list[str]:
    return ["method", "all but answering", *(STAGES.get(one, one) for one in _stages(groups)), "images per second"]


def _time_row(group: Group, groups: Sequence[Group]) -> list[object]:
    stages = (f"{_seconds(group, stage):.1f}" for stage in _stages(groups))
    total = Spread.of([run.cost.training_seconds for run in group.runs], percent=False)
    speed = statistics.fmean(run.cost.images_per_second for run in group.runs)
    return [name(group.label), str(total), *stages, f"{speed:,.0f}"]


def _caution(runs: Sequence[Gathered]) -> str:
    machines = {(run.environment.get("processor"), run.environment.get("threads")) for run in runs}
    measured = "Seconds of wall time over all tasks, mean over seeds; images per second are those of answering."
    if len(machines) > 1:
        return f"{measured} The runs were made on different machines or with different threads: do not compare times."
    return f"{measured} Times depend on what else the machine did."


def _kept(learner: Learner, method: str) -> Markup:
    rows = [[one.place, f"{one.size:,}", one.words] for one in kept(learner.state)]
    alone = single_images(learner.state)
    warnings = []
    if method_info(method).joint:
        warnings.append("This method is an upper bound: it was trained on the images of all tasks together.")
    if alone:
        warnings.append(
            f"{len(alone)} classes have a single image, whose feature their statistics are: "
            + ", ".join(map(str, alone[:5]))
        )
    listed = table(["where", "bytes", "what it is"], rows, label="what is kept", words=(0, 2)) if rows else None
    nothing = tag("p", "Nothing is kept beside the network.") if not rows else None
    return join([listed, nothing, *(tag("p", warning, class_="note") for warning in warnings)])
