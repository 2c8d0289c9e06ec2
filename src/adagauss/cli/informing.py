"""`adagauss info`: what a model knows, and exactly what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adagauss.cli import terminal
from adagauss.cli.model import changes_of, open_model
from adagauss.cli.options import ReadableModel
from adagauss.utils.progress import clipped, escape_control_chars

if TYPE_CHECKING:
    from adagauss.classifier import IncrementalClassifier
    from adagauss.core.learn import Learner

EXAMPLES = """**Examples:**

`adagauss info birds.safetensors`

`adagauss info runs/demo/adagauss-seed0 --settings`
"""
MOST_ROWS = 20
MOST_CHANGES = 5


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel, epilog=EXAMPLES)(info)


def info(
    model: ReadableModel,
    settings: Annotated[bool, typer.Option("--settings", help="Show its settings and the layer of each.")] = False,
    all_classes: Annotated[bool, typer.Option("--all", help="List every class, however many there are.")] = False,
) -> None:
    """Show what a model knows of each class, what it keeps to the byte, and when it was changed."""
    classifier = open_model(model, quiet=True)
    if settings:
        from adagauss.cli.experiments import show_settings
        from adagauss.experiments.run import RunFolder

        origins = RunFolder(model).origins if model.is_dir() else {}
        show_settings(f"settings of {escape_control_chars(model)}", classifier.learner_.method, origins)
        return
    for name, text in facts(classifier, model):
        typer.echo(terminal.folded(f"{name:9}", escape_control_chars(text), 9))
    for line in class_lines(classifier, everything=all_classes):
        typer.echo(line)


def facts(classifier: IncrementalClassifier, path: Path) -> Iterator[tuple[str, str]]:
    """What is shown above the classes."""
    learner = classifier.learner_
    method = learner.method
    yield "model", clipped(path, terminal.width() - 9, keep_end=True)
    known, tasks = len(learner.classes), len(learner.tasks)
    yield "knows", f"{terminal.counted(known, 'class', 'classes')}, taught in {terminal.counted(tasks, 'task')}"
    parts = ", ".join(f"{part.role} {part.kind}" for part in (method.memory, method.drift, method.classifier))
    yield "method", f"{_chosen(classifier, path)}: {parts}"
    yield "images", "{} channels, {} x {} pixels".format(*learner.shape)
    trained = "trained" if method.trains else "not trained"
    yield "network", f"{method.backbone.name}, {trained}, {learner.network.extractor.size} features"
    history = changes_of(learner.about)
    if len(history) > MOST_CHANGES:
        yield "changed", f"{terminal.counted(len(history) - MOST_CHANGES, 'time')} before those that follow"
    for change in history[-MOST_CHANGES:]:
        counts = [f"{key} {change[key]}" for key in ("classes", "images") if key in change]
        yield "changed", f"{change['when']}  {change['action']}" + (f"; {', '.join(counts)}" if counts else "")
    yield from stored_items(learner)
    yield from _covariances(learner)
    if path.is_dir() and any(path.glob("tasks/*/real.safetensors")):
        yield (
            "beside it",
            "the run folder keeps real statistics of all classes for figures, in tasks/*/real.safetensors: remove "
            "them, or run with --diagnostics none, if they must not be kept",
        )


def _chosen(classifier: IncrementalClassifier, path: Path) -> str:
    """What was asked for: the method, in a run or a model, or an effort that chooses one."""
    if path.is_dir():
        from adagauss.experiments.run import RunFolder

        return str(RunFolder(path).config.get("method_name"))
    return classifier.method or f"effort {classifier.effort}"


def stored_items(learner: Learner) -> Iterator[tuple[str, str]]:
    """What is stored, to the byte, and what is not."""
    sizes: dict[str, int] = {}
    for name, tensor in learner.state.state_dict().items():
        group = name.split(".")[0] if not name.startswith("parts.") else name.split(".")[1]
        sizes[group] = sizes.get(group, 0) + tensor.numel() * tensor.element_size()
    memory = learner.memory
    meanings = {
        "network": "weights of the network",
        "memory": f"mean of each class, covariance: {memory.covariance}, number of images; "
        f"{learner.state.bytes_per_class:,} bytes per class",
        "classifier": "sums and weights that scores are made of",
        "evidence": "counts and histograms, per class, of answers for images while they were left out",
    }
    for group, count in sorted(sizes.items(), key=lambda item: -item[1]):
        if count:
            yield "keeps", f"{count:,} bytes: {meanings.get(group, f'state of the part {group}')}"
    yield "not kept", "images, names of files, and features of single images" + _single(learner)


def _single(learner: Learner) -> str:
    from adagauss.core.learner_state import single_image_classes

    if not (alone := single_image_classes(learner.state)):
        return ""
    names = ", ".join(map(str, alone[:3])) + (" and others" if len(alone) > 3 else "")
    return f"; but what is kept of a class of one image is that image's feature ({names})"


def _covariances(learner: Learner) -> Iterator[tuple[str, str]]:
    memory = learner.memory
    if not len(memory) or memory.covariance == "none":
        return
    if memory.covariance == "shared":
        memory = memory.select(memory.labels[:1])  # one stands for all
    ranks, conditions = memory.ranks(), memory.condition_numbers()
    effective = float(memory.effective_ranks().mean())
    yield (
        "spread",
        f"rank of covariances {int(ranks.min())} to {int(ranks.max())} of {memory.size}, effective rank "
        f"{effective:.1f} on average, condition numbers {float(conditions.min()):.3g} to {float(conditions.max()):.3g}",
    )


def class_lines(classifier: IncrementalClassifier, everything: bool) -> list[str]:
    """One line per class: images, expected accuracy, what it is confused with."""
    summaries = classifier.summary()
    shown = summaries if everything or len(summaries) <= MOST_ROWS else summaries[: MOST_ROWS - 1]
    rows = [
        (
            one.label,
            one.images,
            ""
            if one.expected_accuracy is None
            else f"{100 * one.expected_accuracy:.0f}" + ("*" if one.among < len(summaries) else ""),
            ", ".join(f"{label} {100 * share:.0f} %" for label, share in one.confused_with[:2]),
        )
        for one in shown
    ]
    heads = ("class", "images", "expected, %", "confused with")
    lines = ["", *terminal.lines(heads, rows, right=(1, 2))]
    if len(shown) < len(summaries):
        lines.append(f"... and {len(summaries) - len(shown)} more (--all)")
    if any(one.expected_accuracy is not None and one.among < len(summaries) for one in shown):
        lines.append("* measured when fewer classes were known; adagauss evaluate measures it today")
    return lines
