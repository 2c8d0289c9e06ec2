"""The page: one HTML file that needs nothing else, no script and no network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from adagauss import __version__
from adagauss.report import classes, cost, headline, setup, tasks
from adagauss.report.gathering import LeftOut
from adagauss.report.grouping import Section
from adagauss.report.html import Markup, join, name, tag

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Whatever a name in a run folder contains: nothing is loaded, nothing runs, nothing is sent."""
PARTS = {"tasks": "Tasks", "classes": "Classes", "figures": "Figures", "cost": "Cost", "made": "How it was made"}


def page(sections: Sequence[Section], without: Sequence[LeftOut], figures: Sequence[Sequence[Markup | None]]) -> str:
    """The whole document; ``figures`` are those of each section."""
    count = sum(len(section.runs) for section in sections)
    title = sections[0].title if len(sections) == 1 else f"{len(sections)} protocols"
    head = join(
        [
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="referrer", content="no-referrer"),
            tag("meta", name="generator", content=f"adagauss {__version__}"),
            tag("title", f"Report: {title}"),
            tag("style", Markup(_style())),
        ]
    )
    body = join(
        [
            tag("header", tag("h1", f"Report: {title}"), _made_from(sections, count)),
            _contents(sections) if len(sections) > 1 else None,
            _apart(sections),
            setup.left_out(without),
            *(_section(one, place, drawn) for place, (one, drawn) in enumerate(zip(sections, figures, strict=True))),
        ]
    )
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


@cache
def _style() -> str:
    return (files("adagauss.report") / "style.css").read_text(encoding="utf-8")


def _made_from(sections: Sequence[Section], count: int) -> Markup:
    commits = setup.commits(run for section in sections for run in section.runs)
    made = f"{count} run{'s' * (count > 1)} · adagauss {__version__}"
    return tag("p", made, f" · commit {', '.join(commits)}" if commits else None, class_="quiet")


def _contents(sections: Sequence[Section]) -> Markup:
    links = (tag("li", tag("a", section.title, href=f"#p{place}")) for place, section in enumerate(sections))
    return tag("nav", tag("ul", *links))


def _apart(sections: Sequence[Section]) -> Markup | None:
    if len(sections) == 1:
        return None
    return tag(
        "p",
        f"The runs follow {len(sections)} different protocols (tasks, scale or data). Each has its own part below; "
        "numbers of different parts do not belong into one table.",
        class_="note",
    )


def _section(section: Section, place: int, figures: Sequence[Markup | None]) -> Markup:
    prefix = f"p{place}"
    parts: dict[str, Sequence[Markup | None]] = {
        "tasks": (tasks.by_task(section), tasks.recency(section)),
        "classes": (classes.by_class(section),),
        "figures": figures,
        "cost": (cost.cost(section), cost.storage(section)),
        "made": (setup.made(section), setup.settings(section), setup.environments(section)),
    }
    shown = {key: content for key, content in parts.items() if any(content)}
    links = (tag("li", tag("a", PARTS[key], href=f"#{prefix}-{key}")) for key in shown)
    furthest = max(section.runs, key=lambda run: run.done)
    count = len(section.runs)
    facts = f"{sum(furthest.sizes)} classes, {section.test_images:,} test images, {count} run{'s' * (count > 1)}"
    return tag(
        "main" if place == 0 else "section",
        tag("h2", name(section.title, 200), id=prefix),
        tag("p", facts, class_="quiet"),
        tag("nav", tag("ul", *links), aria_label=f"parts of {section.title}"),
        *(tag("p", sentence, class_="note") for sentence in setup.cautions(section)),
        headline.headline(section),
        *(join([tag("h2", PARTS[key], id=f"{prefix}-{key}"), *content]) for key, content in shown.items()),
    )
