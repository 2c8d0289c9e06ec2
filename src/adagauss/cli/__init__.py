"""The command line: thin commands over the library. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, NoReturn, TextIO

import typer

from adagauss import __version__
from adagauss.cli import experiments, models, output
from adagauss.errors import AdagaussError
from adagauss.utils.process import is_out_of_memory, keep_freed_memory, limit_openmp_spin
from adagauss.utils.progress import escape_control_chars

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


EXAMPLES = """**Examples:**

`adagauss teach birds.safetensors photos`

`adagauss predict birds.safetensors unsorted --top 3`

`adagauss demo`
"""


@app.callback(epilog=EXAMPLES)
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Options that come before a command."""
    global _debug
    _debug = debug
    if context.invoked_subcommand in _model_commands():
        limit_openmp_spin()


MODELS = "Models: teach your own photographs"
RESEARCH = "Research: methods on streams of tasks"
COMMANDS = {
    MODELS: (models,),
    RESEARCH: (experiments,),
}
for panel, modules in COMMANDS.items():
    for module in modules:
        module.register(app, panel)


def _model_commands() -> set[str]:
    """Names of the commands for models: their networks are frozen by default, so OpenMP threads need not spin."""
    ours = [one for one in app.registered_commands if one.rich_help_panel == MODELS]
    return {one.name or one.callback.__name__ for one in ours if one.callback}


def main() -> None:
    """Run a command; a user error is shown as one sentence, with exit code 2."""
    keep_freed_memory()
    for stream in (sys.stdout, sys.stderr):
        # Escape characters that the encoding of the terminal lacks.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = warn
            app()
    except output.Stopped as stopped:
        _stopped(str(stopped))
    except SystemExit as ended:
        if ended.code != output.EXIT_CODE:
            raise
        _stopped(output.NOTHING_CHANGED)
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


def warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning as one line, without its line of code."""
    typer.secho(f"adagauss: {_harmless(str(message))}", fg="yellow", err=True)


def _fail(sentence: str, code: int) -> NoReturn:
    if _debug:
        raise
    typer.secho(f"adagauss: {_harmless(sentence)}", fg="red", err=True)
    sys.exit(code)


def _stopped(kept: str) -> NoReturn:
    typer.secho(f"\nadagauss: stopped; {_harmless(kept)}", fg="yellow", err=True)
    sys.exit(output.EXIT_CODE)


def _harmless(sentence: str) -> str:
    """Escape control characters of quoted names; line ends stay."""
    return "\n".join(map(escape_control_chars, sentence.split("\n")))
