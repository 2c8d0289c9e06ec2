"""`adagauss export` and `adagauss serve`: a model at work elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adagauss.cli.model import open_model, size
from adagauss.cli.options import Quiet, ReadableModel
from adagauss.cli.stopping import stoppable
from adagauss.errors import CheckpointError, ConfigError
from adagauss.utils.progress import escape_control_chars

SERVE = """**Examples:**

`adagauss serve birds.safetensors`

`adagauss serve birds.safetensors --host 0.0.0.0 --token "$(openssl rand -hex 16)"`
"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the commands."""
    app.command(rich_help_panel=panel, epilog="**Example:** `adagauss export birds.safetensors birds.onnx`")(export)
    app.command(rich_help_panel=panel, epilog=SERVE)(serve)


def export(
    model: ReadableModel,
    out: Annotated[Path, typer.Argument(metavar="OUT.onnx", help="File to write.")],
    quiet: Quiet = False,
) -> None:
    """Write a model as one ONNX file, with the preparation of images inside: it needs only onnxruntime to run."""
    if out.suffix != ".onnx":
        raise ConfigError(f"{out} should end in .onnx, which other programs go by")
    with stoppable(f"{out} was not written"):
        classifier = open_model(model, quiet=quiet)
        classifier.export(out)
    typer.echo(
        escape_control_chars(
            f"Wrote {out} ({size(out)}): {len(classifier.learner_.classes)} classes, named in its metadata."
        )
    )


def serve(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="File of a model; begun if there is none.")],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; others than this machine's need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option("--token", envvar="ADAGAUSS_TOKEN", help="What every request must carry.")
    ] = None,
) -> None:
    """Serve a page to teach and try a model, and the same by REST (extra: serve)."""
    if model.is_dir():
        raise CheckpointError(f"{model} is a folder: serve a file of its own, such as a copy of a run's learner")
    try:
        from adagauss.deploy.serve import main
    except ImportError as error:
        raise ConfigError(f"serving needs {error.name}: pip install 'adagauss[serve]'") from None
    with stoppable(f"what was taught is kept in {model}"):
        main(model, host, port, token)
