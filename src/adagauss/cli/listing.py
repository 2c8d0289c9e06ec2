"""`adagauss methods`, `adagauss protocols`, `adagauss backbones`: what can be run, on what, with which network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="**Examples:** `adagauss methods` · `adagauss methods adagauss --preset paper`")(methods)
    app.command(epilog="**Example:** `adagauss protocols`, then `adagauss run --protocol cifar100-10-cpu`")(protocols)
    app.command(epilog="**Example:** `adagauss backbones`, then `adagauss run --set backbone.name=resnet32`")(backbones)


def methods(
    name: Annotated[str | None, typer.Argument(help="Show the settings of one method.")] = None,
    preset: Annotated[str | None, typer.Option("--preset", "-p", help="With its settings as in this preset.")] = None,
) -> None:
    """List the methods, or every setting of one of them."""
    from adagauss.config import flatten, plain
    from adagauss.methods import make_method
    from adagauss.methods import methods as all_methods

    if name is not None:
        settings = flatten(plain(make_method(name, preset)))
        show(f"settings of {name}", ("--set", "value"), [(key, str(value)) for key, value in settings.items()])
        return
    rows = []
    for info in all_methods().values():
        presets = ", ".join(f"{key}*" if key == info.default_preset else key for key in info.presets)
        rows.append((info.name, info.family, info.stores, presets, info.paper))
    show("methods", ("name", "family", "stored of a class", "presets", "paper"), rows)


def protocols() -> None:
    """List the benchmarks by name: tasks (where one number goes before, so many classes first), class order, network.

    Each also exists with -cpu at its end, small enough for two CPU cores.
    """
    from adagauss.benchmark.protocols import PROTOCOLS

    rows = []
    for name, chosen in PROTOCOLS.items():
        if chosen.scale == "cpu":
            continue
        stream, small = chosen.stream, PROTOCOLS[f"{name}-cpu"]
        tasks = f"{stream.first} + {stream.tasks - 1}" if stream.first else str(stream.tasks)
        order = "by seed" if stream.class_order else "fixed"
        networks = [protocol.settings["backbone.name"] for protocol in (chosen, small)]
        rows.append((name, tasks, order, networks[0], networks[1]))
    show("protocols (each also as NAME-cpu)", ("name", "tasks", "order", "network", "as -cpu"), rows)


def backbones() -> None:
    """List the networks, and whether all they need is installed."""
    from adagauss.backbones import backbones as all_backbones
    from adagauss.backbones import families

    known = {**all_backbones(), **families()}
    rows = [(name, info.summary, "yes" if info.available else "no") for name, info in known.items()]
    show("networks (--set backbone.name=...)", ("name", "what it is", "installed"), rows)


def show(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table whose first column is never broken."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, no_wrap=column == columns[0])
    for row in rows:
        table.add_row(*row)
    Console().print(table)
