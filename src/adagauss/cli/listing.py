"""`adagauss methods`: what can be run."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="**Examples:** `adagauss methods` · `adagauss methods adagauss --preset paper`")(methods)


def methods(
    name: Annotated[str | None, typer.Argument(help="Show the settings of one method.")] = None,
    preset: Annotated[str | None, typer.Option("--preset", "-p", help="With its settings as in this preset.")] = None,
) -> None:
    """List the methods, or every setting of one of them."""
    from rich.console import Console
    from rich.table import Table

    from adagauss.config import flatten, plain
    from adagauss.methods import make_method
    from adagauss.methods import methods as all_methods

    console = Console()
    if name is not None:
        table = Table(title=f"settings of {name}", title_justify="left")
        table.add_column("--set")
        table.add_column("value")
        for key, value in flatten(plain(make_method(name, preset))).items():
            table.add_row(key, str(value))
        console.print(table)
        return
    table = Table(title="methods", title_justify="left")
    for column in ("name", "family", "stored of a class", "presets", "paper"):
        table.add_column(column, no_wrap=column == "name")
    for info in all_methods().values():
        presets = ", ".join(f"{key}*" if key == info.default_preset else key for key in info.presets)
        table.add_row(info.name, info.family, info.stores, presets, info.paper)
    console.print(table)
