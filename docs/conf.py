"""The documentation site (`make docs`): the Markdown files of the project, and a reference written from docstrings."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

from numpy.typing import ArrayLike
from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation

import adagauss

ROOT = Path(__file__).parent.parent
project = "adagauss"
copyright = "2026, the adagauss authors"
version = release = adagauss.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_heading_anchors = 3
default_role = "py:obj"  # `Learner` in a docstring is a link; what has no page is shown as code
add_module_names = False
python_maximum_signature_line_length = 100
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": True, "exclude-members": "model_config"}

html_theme = "furo"
html_title = "adagauss"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_show_sphinx = False

FRONT = {
    "index": "README.md",
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "security": "SECURITY.md",
}
"""Pages that are files of the project's root, and what they are there."""
CHAPTERS = {
    "For users": ["estimator", "inputs", "export", "bayes", "learner", "gaussians", "errors"],
    "A method and its parts": ["methods", "representation", "memory", "drift", "classifiers"],
    "Data and networks": ["data", "backbones"],
    "Runs and figures": ["runs", "analysis"],
}
"""Modules in the order of the reference; those not named here follow under *Foundations*."""
HIDDEN = {"cli", "serve", "__main__"}
"""Programs, not a library: docs/serving.md and the help of the commands describe them."""


def write_reference(app: Sphinx) -> None:
    """One page for each module or package below ``adagauss``, the modules of a package one after another."""
    folder, found = ROOT / "docs" / "api", top_modules()
    for name in found:
        lines = _title(f"adagauss.{name}", "=") + _module(f"adagauss.{name}", found[name])
        path = [str(Path(adagauss.__path__[0]) / name)]
        for module in pkgutil.walk_packages(path, f"adagauss.{name}.") if found[name] else ():
            lines += _title(module.name.removeprefix(f"adagauss.{name}."), "-") + _module(module.name, module.ispkg)
        _write(folder / f"{name}.rst", lines)


def top_modules() -> dict[str, bool]:
    """The modules right below ``adagauss``, and which of them are packages."""
    found = {module.name: module.ispkg for module in pkgutil.iter_modules(adagauss.__path__)}
    return {name: package for name, package in found.items() if name not in HIDDEN}


def chapters() -> str:
    """The reference in the table of contents."""
    found = top_modules()
    named = [name for names in CHAPTERS.values() for name in names]
    others = [name for name in found if name not in named]
    text = ""
    for chapter, names in {**CHAPTERS, "Foundations": others}.items():
        pages = "\n".join(f"api/{name}" for name in names if name in found)
        text += f"\n```{{toctree}}\n:hidden:\n:caption: {chapter}\n\n{pages}\n```\n"
    return text


def _module(name: str, package: bool) -> list[str]:
    """A package shows its docstring only: what it offers is shown where it is written."""
    return [f".. automodule:: {name}", *(["   :no-members:"] if package else []), ""]


def _title(text: str, line: str) -> list[str]:
    return [text, line * len(text), ""]


def _write(path: Path, lines: list[str]) -> None:
    """Only what changed, so that a second build is quick."""
    text = "\n".join(lines) + "\n"
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def fill_front_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Put a file of the project's root on its page, with links that hold there."""
    if page not in FRONT:
        return
    text = (ROOT / FRONT[page]).read_text(encoding="utf-8")
    for name, file in FRONT.items():
        text = text.replace(f"]({file})", f"]({name}.md)")
    text = text.replace("](docs/", "](").replace("](src/adagauss/methods/adagauss.py)", "](api/methods.rst)")
    source[0] = text + "\n" + source[0] + (chapters() if page == "index" else "")


def mend_docstring(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Show algorithms, which are indented or set in columns, line by line; a bar is a bar, as in |Σ|."""
    paragraphs, last = [], " "
    for paragraph in "\n".join(lines).split("\n\n"):
        columns = re.search(r"\S {3,}\S", paragraph) and not paragraph.startswith(">>>")
        indented = not last.startswith(" ") and all(line.startswith(" ") for line in paragraph.splitlines())
        if columns or indented:
            paragraphs += ["::", "    " + paragraph.replace("\n", "\n    ")]
        elif paragraph.startswith(">>>"):
            paragraphs.append(paragraph)
        else:
            paragraphs.append(
                re.sub(r"``.*?``|\|", lambda found: found[0].replace("|", r"\|", found[0] == "|"), paragraph)
            )
        last = paragraph.splitlines()[-1] if paragraph.strip() else last
    lines[:] = "\n\n".join(paragraphs).split("\n")


ARRAY_LIKE = stringify_annotation(ArrayLike, "smart")  # type: ignore[arg-type]


def shorten_signature(
    app: Sphinx, what: str, name: str, thing: object, options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Name numpy's ArrayLike, whose parts fill three lines."""
    return signature and signature.replace(ARRAY_LIKE, "ArrayLike"), returns


def skip_foreign(app: Sphinx, what: str, name: str, thing: object, skip: bool, options: object) -> bool | None:
    """Leave out what scikit-learn adds to every estimator (``set_score_request`` and its like)."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_reference)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("source-read", fill_front_page)
    app.connect("autodoc-process-docstring", mend_docstring, priority=400)  # before napoleon indents sections
