"""The command line: thin commands over the library. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from adagauss import __version__
from adagauss.allocator import keep_freed_memory
from adagauss.cli import comparing, datasets, demo, learned, listing, replaying, running
from adagauss.errors import AdagaussError

app = typer.Typer(
    name="adagauss",
    help="Exemplar-free class-incremental learning: teach a classifier new classes without keeping old data.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_debug = False


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adagauss {__version__}")
        raise typer.Exit


@app.callback(epilog="**Examples:** `adagauss demo` · `adagauss run --dataset digits` · `adagauss methods`")
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Options that come before a command."""
    global _debug
    _debug = debug


for module in (demo, running, comparing, replaying, learned, listing):
    module.register(app)
app.add_typer(datasets.app, name="datasets")


def main() -> None:
    """Run a command; a user error is shown as one sentence, with exit code 2."""
    keep_freed_memory()
    try:
        app()
    except AdagaussError as error:
        if _debug:
            raise
        typer.secho(f"adagauss: {error}", fg="red", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.secho("adagauss: stopped; continue a run with --resume", fg="yellow", err=True)
        sys.exit(130)
    except Exception as error:
        if _debug:
            raise
        typer.secho(
            f"adagauss: unexpected error ({type(error).__name__}: {error}); 'adagauss --debug ...' shows where",
            fg="red",
            err=True,
        )
        sys.exit(1)
