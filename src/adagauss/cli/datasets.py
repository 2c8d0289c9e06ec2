"""`adagauss datasets`: what can be learned from, and how to get it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adagauss.cli.options import DataRoot

app = typer.Typer(
    help="List the datasets, or fetch one.",
    invoke_without_command=True,
    epilog="**Examples:** `adagauss datasets` · `adagauss datasets fetch cifar100 --data-root data`",
    rich_markup_mode="markdown",
)


@app.callback()
def list_datasets(context: typer.Context, data_root: DataRoot = Path("data")) -> None:
    """List the datasets: size, licence, where each is expected, and whether it is there."""
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console
    from rich.table import Table

    from adagauss.data.dataset import datasets

    table = Table(title=f"datasets below {data_root}", title_justify="left")
    for column in ("name", "what", "classes", "images", "expected at", "there", "licence"):
        table.add_column(column, no_wrap=column == "name", overflow="fold")
    for info in datasets().values():
        there = "yes" if info.present(data_root) else "no (fetch)" if info.fetchable else "no"
        classes = str(info.classes) if info.classes else "any"
        table.add_row(info.name, info.title, classes, info.images, info.folder or "-", there, info.licence)
    Console().print(table)


@app.command(epilog="**Example:** `adagauss datasets fetch cifar100`")
def fetch(
    name: Annotated[str, typer.Argument(help="A dataset; see `adagauss datasets`.")],
    data_root: DataRoot = Path("data"),
) -> None:
    """Download a dataset, check it and unpack it below the data root."""
    from adagauss.data.fetch import fetch as download

    typer.echo(f"{name} is at {download(name, data_root)}")
