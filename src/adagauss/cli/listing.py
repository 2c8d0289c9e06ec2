"""`adagauss methods`, `adagauss protocols`, `adagauss backbones`: list what can be run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from adagauss.cli import terminal
from adagauss.cli.options import dataset_name
from adagauss.errors import ConfigError

if TYPE_CHECKING:
    from adagauss.methods import Method


FAMILIES = {
    "exact": "nothing is trained; running sums give the same answer in any order",
    "drift compensation": "the network learns on, the memory of old classes follows",
    "frozen extractor": "the network is trained on the first task only",
    "prototype replay": "old classes are rehearsed from their means",
    "regularisation": "what mattered for old classes changes less",
    "reference": "lower bounds",
    "upper bound": "sees all images, old ones too",
}
"""What the methods of a family have in common; families of other packages come last."""


def register(app: typer.Typer, panel: str) -> None:
    """Add the commands."""
    for command, examples in (
        (methods, "**Examples:** `adagauss methods` · `adagauss methods adagauss --preset paper`"),
        (protocols, "**Example:** `adagauss protocols`, then `adagauss run --protocol cifar100-10-cpu`"),
        (backbones, "**Example:** `adagauss backbones`, then `adagauss run --set backbone.name=resnet32`"),
    ):
        app.command(rich_help_panel=panel, epilog=examples)(command)


def methods(
    name: Annotated[str | None, typer.Argument(help="Show what one method keeps, and its settings.")] = None,
    preset: Annotated[str | None, typer.Option("--preset", "-p", help="Show the settings with this preset.")] = None,
    protocol: Annotated[
        str | None, typer.Option("--protocol", "-P", help="Show the settings under this protocol.")
    ] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", "-d", help="Show the settings on this dataset.")] = None,
) -> None:
    """List the methods by family, or show one method: what it keeps, and each setting with the layer it comes from."""
    if name is not None:
        _show_method(name, preset, protocol, dataset)
        return
    if preset or protocol or dataset:
        raise ConfigError("settings are shown for one method only: name it, as in `adagauss methods adagauss`")
    for line in method_lines():
        typer.echo(line)


def method_lines() -> list[str]:
    """One line per method, below the heading of its family."""
    from adagauss.methods import methods as all_methods

    infos = list(all_methods().values())
    families = list(dict.fromkeys([*FAMILIES, *(info.family for info in infos)]))
    infos.sort(key=lambda info: families.index(info.family))
    # All families share their columns; each heading goes before the first of its lines.
    rows = [(f"  {info.name}", info.title, info.paper.partition(", arXiv")[0].partition(";")[0]) for info in infos]
    found: list[str] = []
    for number, line in enumerate(terminal.lines(("", "", ""), rows)[1:]):
        family = infos[number].family
        if number == 0 or infos[number - 1].family != family:
            found += [f"{family}: {FAMILIES[family]}" if family in FAMILIES else family]
        found.append(line)
    return [*found, "", "adagauss methods NAME tells what one keeps, and all of its settings"]


def _show_method(name: str, preset: str | None, protocol: str | None, dataset: str | None) -> None:
    from adagauss.data.stream import StreamConfig
    from adagauss.experiments.config import make_config
    from adagauss.experiments.protocols import protocol as protocol_by_name
    from adagauss.methods import method_info, resolve_method

    if protocol and dataset:
        raise ConfigError("--dataset and --protocol both choose the tasks: give only one of them")
    info = method_info(name)
    does = (info.build.__doc__ or "").partition("\n\n")[0]
    facts = {
        info.title: " ".join(does.split()),
        "family": info.family,
        "kept": info.stores,
        "paper": info.paper,
        "presets": ", ".join(f"{key} (default)" if key == info.default_preset else key for key in info.presets),
    }
    for key, text in facts.items():
        if text:
            typer.echo(terminal.folded(f"{key}: ", text, 4))
    typer.echo()
    if not protocol and not dataset:
        resolved = resolve_method(name, preset)
        show_settings(f"settings of {name}", resolved.config, resolved.origins)
        return
    chosen = protocol_by_name(protocol) if protocol else None
    stream = chosen.stream if chosen else StreamConfig.of({"dataset": dataset_name(dataset or "")})
    config = make_config(name, stream, preset=preset, protocol=chosen)
    show_settings(f"settings of {name}, {protocol or dataset}", config.method, config.origins)


def show_settings(title: str, method: Method, origins: Mapping[str, str]) -> None:
    """Print every setting of a method and, if known, the layer that it comes from."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from adagauss.core.config import flatten, plain
    from adagauss.utils.files import as_yaml

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("--set", overflow="fold")
    table.add_column("from", style="dim")
    for key, value in flatten(plain(method)).items():
        table.add_row(Text(f"{key}={as_yaml(value)}"), origins.get(key, ""))
    Console().print(table)


def protocols() -> None:
    """List the protocols: number of tasks ("50 + 5": 50 classes first, then 5 more tasks), class order, network.

    Each also exists as NAME-cpu, small enough for two CPU cores; those from scratch also as NAME-few, 2 classes a task.
    """
    from adagauss.experiments.protocols import PROTOCOLS

    rows = []
    for name, chosen in PROTOCOLS.items():
        if chosen.scale == "cpu":
            continue
        stream, small = chosen.stream, PROTOCOLS[f"{name}-cpu"]
        tasks = f"{stream.first} + {stream.tasks - 1}" if stream.first else str(stream.tasks)
        order = "by seed" if stream.class_order else "fixed"
        networks = [protocol.settings["backbone.name"] for protocol in (chosen, small)]
        rows.append((name, tasks, order, networks[0], networks[1]))
    heads = ("name", "tasks", "order", "network", "as -cpu")
    terminal.show(terminal.table("protocols (each also as NAME-cpu)", heads, rows))


def backbones() -> None:
    """List the backbones, and whether everything they need is installed."""
    from adagauss.backbones import backbones as all_backbones
    from adagauss.backbones import families

    known = {**all_backbones(), **families()}
    rows = [(name, info.summary, "yes" if info.available else "no") for name, info in known.items()]
    heads = ("name", "what it is", "installed")
    terminal.show(terminal.table("backbones (--set backbone.name=...)", heads, rows))
