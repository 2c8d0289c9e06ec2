"""`adagauss methods`, `adagauss protocols`, `adagauss backbones`: list what can be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from adagauss.errors import ConfigError

if TYPE_CHECKING:
    from adagauss.methods import Method


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="**Examples:** `adagauss methods` · `adagauss methods adagauss --preset paper`")(methods)
    app.command(epilog="**Example:** `adagauss protocols`, then `adagauss run --protocol cifar100-10-cpu`")(protocols)
    app.command(epilog="**Example:** `adagauss backbones`, then `adagauss run --set backbone.name=resnet32`")(backbones)


def methods(
    name: Annotated[str | None, typer.Argument(help="Show the settings of one method.")] = None,
    preset: Annotated[str | None, typer.Option("--preset", "-p", help="Show the settings with this preset.")] = None,
    protocol: Annotated[
        str | None, typer.Option("--protocol", "-P", help="Show the settings under this protocol.")
    ] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", "-d", help="Show the settings on this dataset.")] = None,
) -> None:
    """List the methods, or every setting of one method with the layer that it comes from."""
    from adagauss.methods import methods as all_methods

    if name is not None:
        _show_method(name, preset, protocol, dataset)
        return
    if preset or protocol or dataset:
        raise ConfigError("settings are shown for one method only: name it, as in `adagauss methods adagauss`")
    rows = []
    for info in all_methods().values():
        presets = ", ".join(f"{key}*" if key == info.default_preset else key for key in info.presets)
        rows.append((info.name, info.family, info.stores, presets, info.paper))
    show("methods", ("name", "family", "stored per class", "presets", "paper"), rows)


def _show_method(name: str, preset: str | None, protocol: str | None, dataset: str | None) -> None:
    from adagauss.data.stream import StreamConfig
    from adagauss.methods import resolve_method
    from adagauss.runs import make_config
    from adagauss.runs.protocols import protocol as protocol_by_name

    if protocol and dataset:
        raise ConfigError("--dataset and --protocol both choose the tasks: give only one of them")
    if not protocol and not dataset:
        resolved = resolve_method(name, preset)
        show_settings(f"settings of {name}", resolved.config, resolved.origins)
        return
    chosen = protocol_by_name(protocol) if protocol else None
    stream = chosen.stream if chosen else StreamConfig.of({"dataset": dataset})
    config = make_config(name, stream, preset=preset, protocol=chosen)
    show_settings(f"settings of {name}, {protocol or dataset}", config.method, config.origins)


def show_settings(title: str, method: Method, origins: Mapping[str, str]) -> None:
    """Print every setting of a method and, if known, the layer that it comes from."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from adagauss.config import plain
    from adagauss.settings import flatten

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("--set", overflow="fold")
    table.add_column("from", style="dim")
    for key, value in flatten(plain(method)).items():
        table.add_row(Text(f"{key}={_as_yaml(value)}"), origins.get(key, ""))
    Console().print(table)


def _as_yaml(value: object) -> str:
    """A value as ``--set`` takes it."""
    import yaml

    return yaml.safe_dump(value, default_flow_style=True, width=float("inf")).removesuffix("\n").removesuffix("\n...")


def protocols() -> None:
    """List the protocols: number of tasks ("50 + 5": 50 classes first, then 5 more tasks), class order, network.

    Each also exists as NAME-cpu, small enough for two CPU cores.
    """
    from adagauss.runs.protocols import PROTOCOLS

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
    """List the backbones, and whether everything they need is installed."""
    from adagauss.backbones import backbones as all_backbones
    from adagauss.backbones import families

    known = {**all_backbones(), **families()}
    rows = [(name, info.summary, "yes" if info.available else "no") for name, info in known.items()]
    show("backbones (--set backbone.name=...)", ("name", "what it is", "installed"), rows)


def show(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table whose first column is never broken."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, no_wrap=column == columns[0])
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)
