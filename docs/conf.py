"""The documentation site (`make docs`): Markdown pages, results, executed notebooks, reference of public names."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from numpy.typing import ArrayLike
from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation

import adagauss

ROOT = Path(__file__).parent.parent
project = "adagauss"
copyright = "2026, the adagauss authors"
version = release = adagauss.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["static", "images"]
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "notebooks")
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"
default_role = "py:obj"  # `Learner` in a docstring is a link; a name without a page is shown as code
add_module_names = False
python_maximum_signature_line_length = 100
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "model_config"}

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
"""Pages that are files of the project's root."""


def copy_results(app: Sphinx) -> None:
    """Copy ``results/`` into the sources of the site: Sphinx reads one folder."""
    shutil.copytree(ROOT / "results", Path(app.srcdir) / "results", dirs_exist_ok=True)


def rewrite_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Insert files of the project's root, and turn links of the repository into links of the site."""
    text = source[0]
    if page in FRONT:
        text = (ROOT / FRONT[page]).read_text(encoding="utf-8") + "\n" + text
        text = text.replace("](docs/", "](")
    up = "../" * page.count("/")
    for name, file in FRONT.items():
        text = re.sub(rf"\]\((\.\./)*{re.escape(file)}", f"]({up}{name}.md", text) if name != "index" else text
    text = text.replace("](../results/", "](results/") if "/" not in page else text.replace("](../docs/", "](../")
    source[0] = text


def format_docstring(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Show algorithms, which are indented or set in columns, line by line, and escape bars, as in |Σ|."""
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


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", copy_results)
    app.connect("source-read", rewrite_links)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-process-docstring", format_docstring, priority=400)  # before napoleon indents sections
