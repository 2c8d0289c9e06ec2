"""The command line: thin commands over the library. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer import Context, Option

from adagauss import __version__
from adagauss.cli import experiments, models, output  # noqa: F401  # the first two add their commands
from adagauss.cli.old_names import current_words
from adagauss.cli.options import MODELS, app, examples
from adagauss.errors import AdagaussError
from adagauss.utils.process import is_out_of_memory, keep_freed_memory, limit_openmp_spin

__all__ = ["app", "main", "show_warning"]

app.registered_commands.sort(key=lambda command: str(command.rich_help_panel))  # those for models first
_debug = False


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"adagauss {__version__}")
        raise typer.Exit


@app.callback(
    epilog=examples(
        "adagauss teach birds.safetensors photos",
        "adagauss predict birds.safetensors unsorted --top 3",
        "adagauss compare --methods adagauss,finetune --dataset digits",
    )
)
def global_options(
    context: Context,
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Options that come before a command."""
    global _debug
    _debug = debug
    group: Any = context.command
    if group.commands[context.invoked_subcommand].rich_help_panel == MODELS:
        limit_openmp_spin()  # networks of models are frozen by default: threads need not spin


def main() -> None:
    """Run a command; a user error is shown as one message, with exit code 2."""
    keep_freed_memory()
    for stream in (sys.stdout, sys.stderr):
        # Escape characters that the encoding of the terminal lacks.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            app(current_words(sys.argv[1:]))
    except output.Stopped as stopped:
        _stop(str(stopped))
    except SystemExit as ended:
        if ended.code != output.EXIT_CODE:
            raise
        _stop(output.NOTHING_CHANGED)
    except AdagaussError as error:
        _fail(str(error), 2)
    except OSError as error:
        # Errors without a message of the library show the message of the system.
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}; check the path, its permissions and the free space", 2)
    except Exception as error:
        if is_out_of_memory(error):
            _fail("the memory is full; smaller images or batches, a smaller network or fewer --jobs need less", 2)
        _fail(f"unexpected error ({type(error).__name__}: {error}); 'adagauss --debug ...' shows where", 1)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning as one line, without its line of code."""
    output.warn(str(message))


def _fail(message: str, code: int) -> NoReturn:
    if _debug:
        raise
    output.warn(message, "red")
    sys.exit(code)


def _stop(stored: str) -> NoReturn:
    output.say("", error=True)
    output.warn(f"stopped; {stored}")
    sys.exit(output.EXIT_CODE)
