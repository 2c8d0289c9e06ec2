"""`adagauss datasets`: list, download and clean up datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adagauss.cli import terminal
from adagauss.cli.options import DataRoot, given_options, make_reporter
from adagauss.cli.stopping import stoppable
from adagauss.utils.progress import escape_control_chars

if TYPE_CHECKING:
    from adagauss.data.dataset import DatasetInfo

app = typer.Typer(
    help="List the datasets, fetch one, or remove decoded images.",
    invoke_without_command=True,
    epilog="**Examples:** `adagauss datasets` · `adagauss datasets fetch cifar100 --data-root data`",
    rich_markup_mode="markdown",
)


@app.callback()
def list_datasets(context: typer.Context, data_root: DataRoot = Path("data")) -> None:
    """List the datasets: size, licence, where each is expected, and whether it is present."""
    if context.invoked_subcommand is not None:
        return
    from adagauss.data.dataset import datasets

    width = terminal.width()
    typer.secho(f"datasets below {data_root}", italic=True)
    infos = list(datasets().values())
    names = max(len(info.name) for info in infos)
    typer.secho(row("name", "classes", "there", "images", names, width), bold=True)
    for info in infos:
        typer.echo(row(info.name, str(info.classes or "any"), there(info, data_root), info.images, names, width))
        typer.secho(details(info, width), dim=True)
    if kept := _mebibytes(_decoded(data_root)):
        typer.secho(f"decoded images kept for the next run: {kept} MiB (`adagauss datasets clean`)", italic=True)


def there(info: DatasetInfo, root: Path) -> str:
    """Whether a dataset is present, and if not, whether it can be fetched."""
    if info.takes_path:
        return "-"
    if info.present(root):
        return "yes"
    return "no (fetch)" if info.fetchable else "no"


def row(name: str, classes: str, there: str, images: str, names: int, width: int) -> str:
    """The main facts in columns; ``names`` is the width of the first column, and the last column is wrapped."""
    return _folded(f"{name:{names}}  {classes:>7}  {there:10}  ", images, width)


def details(info: DatasetInfo, width: int) -> str:
    """More facts about a dataset, indented below its row."""
    place = f"in {info.folder}/; " if info.folder else ""
    return _folded("    ", f"{info.title}; {place}licence: {info.licence}", width)


def _folded(start: str, text: str, width: int) -> str:
    import textwrap

    return textwrap.fill(
        text,
        max(width, terminal.NARROWEST),
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )


@app.command(epilog="**Example:** `adagauss datasets fetch cifar100`")
def fetch(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A dataset; see `adagauss datasets`.")],
    data_root: DataRoot = Path("data"),
) -> None:
    """Download a dataset, check it and unpack it below the data root."""
    from adagauss.data.download import fetch as download

    with stoppable(f"{name} is not complete: the same command begins again"):
        place = download(name, _root(context, data_root), reporter=make_reporter(quiet=False))
    typer.echo(escape_control_chars(f"{name} is at {place}"))


@app.command(epilog="**Example:** `adagauss datasets clean --data-root data`")
def clean(context: typer.Context, data_root: DataRoot = Path("data")) -> None:
    """Remove decoded images that were kept for the next run, which then decodes the image files again."""
    files = _decoded(_root(context, data_root))
    freed = _mebibytes(files)
    for file in files:
        file.unlink(missing_ok=True)
    typer.echo(f"removed {freed} MiB of decoded images" if files else "no decoded images are kept")


def _root(context: typer.Context, data_root: Path) -> Path:
    """The data root, which may be given before or after the subcommand."""
    if context.parent is not None and "data_root" not in given_options(context):
        root: Path = context.parent.params["data_root"]
        return root
    return data_root


def _decoded(data_root: Path) -> list[Path]:
    from adagauss.data.files import cached_files, root_cache, user_cache

    folders = [root_cache(data_root), user_cache()]
    return [file for folder in folders if folder is not None for file in cached_files(folder)]


def _mebibytes(files: list[Path]) -> int:
    """Size of the files, rounded up."""
    return -(-sum(file.stat().st_size for file in files) // 2**20)
