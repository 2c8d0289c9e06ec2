"""The report in a real browser; skipped where playwright or Chromium is absent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from adagauss.analysis.report import write_report
from tests.analysis.made_runs import config_of, made_run
from tests.analysis.test_report import HOSTILE

playwright = pytest.importorskip("playwright.sync_api")
if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("report")
    for seed in range(2):
        made_run(place / f"run{seed}", config_of("adagauss", (4, 4), seed), names=HOSTILE, right=0.5 + seed / 10)
    write_report([place], place / "report.html", study="recency")
    return place / "report.html"


@pytest.fixture
def page(report: Path) -> Iterator[Page]:
    """The report, without scripts; a network request or a refusal of the policy fails the test."""
    complaints: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.on("console", lambda line: complaints.append(line.text))
        page.on("dialog", lambda dialog: complaints.append(f"a script opened a dialog: {dialog.message}"))
        page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
        page.goto(report.as_uri())
        yield page
        browser.close()
    assert complaints == []


def test_it_is_read_on_a_phone_in_the_dark_and_on_paper(page: Page) -> None:
    def background() -> str:
        return str(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))

    assert "55.0 % ± 7.1" in page.locator(".best").inner_text()
    assert page.locator("main img:not([src^=data]), main script").count() == 0, "a name became markup"
    light = background()
    page.emulate_media(color_scheme="dark")
    assert background() != light
    widths = page.evaluate("() => [...document.querySelectorAll('.drawn img')].map(one => one.naturalWidth)")
    assert widths, "there are no figures"
    assert min(widths) > 100, "a figure was not drawn"

    page.set_viewport_size({"width": 360, "height": 740})
    page.locator("details:not([open]) > summary").first.click()
    page.evaluate("() => document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360, "only tables and figures may scroll"
    wide = "() => [...document.querySelectorAll('.scroll')].some(one => one.scrollWidth > one.clientWidth)"
    assert page.evaluate(wide), "no table is wider than a phone, so nothing was tested"

    page.emulate_media(media="print", color_scheme="dark")
    assert background() == "rgb(255, 255, 255)"
    assert page.pdf().startswith(b"%PDF")
