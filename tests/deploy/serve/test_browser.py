"""The page in a real browser; skipped where playwright or Chromium is absent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from adagauss import IncrementalClassifier
from tests.deploy.serve.colours import png
from tests.deploy.serve.remote import Remote, served

playwright = pytest.importorskip("playwright.sync_api")
if TYPE_CHECKING:
    from playwright.sync_api import Browser, FilePayload, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

MARKUP = "<img src=x onerror=alert(1)>"
TOKEN = "0123456789abcdef-secret"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        webcam = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *webcam])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which every error of a script and every violation of the policy fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    context.set_default_timeout(30_000)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    page.on("dialog", lambda dialog: complaints.append(f"a script opened a dialog: {dialog.message}"))
    yield page
    context.close()
    # Refusals without a token are wanted, and the server may be gone before the page is.
    wanted = ("401", "ERR_CONNECTION_REFUSED")
    assert [line for line in complaints if not any(word in line for word in wanted)] == []


def pictures(colour: str, count: int, first: int = 30) -> list[FilePayload]:
    return [
        {"name": f"{colour}-{seed}.png", "mimeType": "image/png", "buffer": png(colour, first + seed, side=40)}
        for seed in range(count)
    ]


def card(page: Page, label: str) -> str:
    return f".class:has(.name:text-is('{label}'))"


def teach(page: Page) -> None:
    page.click("#teach:enabled")
    page.wait_for_selector("#teach-progress", state="hidden")


def test_teach_try_rename_forget_undo_and_download(page: Page, model: Path, tmp_path: Path) -> None:
    with served(model) as remote:
        page.goto(remote.address)
        page.wait_for_selector(card(page, "red"))

        # A new class whose name is markup, and more pictures of a known one.
        page.click("#add-class")
        page.fill(".new-name:visible", MARKUP)
        page.locator(".class").last.locator(".file").set_input_files(pictures("blue", 8))
        page.locator(card(page, "red")).locator(".file").set_input_files(pictures("red", 3))
        page.wait_for_selector("#teach:text-is('Teach 11 pictures')")
        teach(page)
        page.wait_for_selector(f"#cards .name:text-is('{MARKUP}')")
        assert page.locator("#cards img, #history img").count() == 0, "a name became markup"
        new = page.locator(".class", has_text=MARKUP)
        assert new.locator(".count").inner_text() == "8 pictures"
        assert new.locator(".thumb.taught").count() == 8

        # Several pictures at once, with bars; the name of the class is text there as well.
        page.select_option("#unknown", "")
        page.locator("#preview-files").set_input_files([*pictures("blue", 1, 70), *pictures("green", 1, 70)])
        page.wait_for_selector(".answer >> nth=1")
        assert page.locator(".verdict b").all_inner_texts() == [MARKUP, "green"]
        assert page.locator(".answer").first.locator(".bar-row").count() == 3

        page.locator(card(page, "red")).locator(".rename").click()
        page.fill("#dialog-input", "scarlet")
        page.click("#dialog-yes")
        page.wait_for_selector(card(page, "scarlet"))

        new.locator(".forget").click()
        page.click("#dialog-yes")
        page.wait_for_selector("#model-facts:has-text('2 classes')")
        page.wait_for_selector(f".verdict b:text-is('{MARKUP}')", state="detached")  # the page requests it again

        page.click("#undo")
        page.click("#dialog-yes")
        page.wait_for_selector("#model-facts:has-text('3 classes')")
        page.wait_for_selector(f"#history li:has-text('undid') .what:text-is('forgot: {MARKUP}')")

        with page.expect_download() as download:
            page.click("#download-model")
        download.value.save_as(tmp_path / "taken.safetensors")
        names = IncrementalClassifier.load(tmp_path / "taken.safetensors").classes_.tolist()
        assert sorted(names) == sorted([MARKUP, "green", "scarlet"])


def folder(path: Path, **classes: str) -> Path:
    """A folder of class folders: three pictures of a colour in each."""
    for name, colour in classes.items():
        (path / name).mkdir(parents=True)
        for one in pictures(colour, 3, 80):
            (path / name / one["name"]).write_bytes(one["buffer"])
    return path


def taught_thumbnails(page: Page, label: str, count: int) -> None:
    """Wait until the card of a known class shows so many pictures as taught."""
    shown = "([label, count]) => document.querySelectorAll(`[aria-label='${label}'] .thumb.taught`).length == count"
    page.wait_for_selector(card(page, label))
    page.wait_for_function(shown, arg=[label, count])


def test_thumbnails_stay_in_the_browser_until_the_class_is_forgotten(page: Page, model: Path, tmp_path: Path) -> None:
    with served(model) as remote:
        page.goto(remote.address)
        page.wait_for_selector(card(page, "red"))
        page.locator("#class-folders").set_input_files(folder(tmp_path / "more", blue="blue", red="red"))
        page.wait_for_selector("#teach:text-is('Teach 6 pictures')")
        teach(page)
        taught_thumbnails(page, "blue", 3)
        page.locator(card(page, "blue")).locator(".rename").click()
        page.fill("#dialog-input", "sky")
        page.click("#dialog-yes")
        taught_thumbnails(page, "sky", 3)
        page.reload()
        taught_thumbnails(page, "sky", 3)

        page.locator(card(page, "sky")).locator(".rename").click()
        page.fill("#dialog-input", "red")
        page.click("#dialog-yes")
        page.wait_for_selector("#dialog-title:text-is('Merge “sky” into “red”?')")
        page.click("#dialog-yes")
        taught_thumbnails(page, "red", 6)
        page.click("#undo:enabled")
        page.click("#dialog-yes")
        page.wait_for_selector(card(page, "sky"))
        taught_thumbnails(page, "red", 3)  # without those of the other class

        page.locator(card(page, "red")).locator(".forget").click()
        page.click("#dialog-yes")
        page.wait_for_selector(card(page, "red"), state="detached")
        page.click("#undo:enabled")
        page.click("#dialog-yes")
        page.reload()
        taught_thumbnails(page, "red", 0)


def test_a_wrong_prediction_waits_to_be_taught_and_other_files_are_refused(page: Page, model: Path) -> None:
    with served(model) as remote:
        page.goto(remote.address)
        page.wait_for_selector(card(page, "red"))
        others: list[FilePayload] = [
            {"name": "a.cr2", "mimeType": "", "buffer": b"not a picture"},
            {"name": "icon", "mimeType": "", "buffer": png("blue", 1, side=40)},  # its name does not say what it is
        ]
        page.locator("#preview-files").set_input_files(others)
        page.wait_for_selector("#toast:has-text('1 file was left out (a.cr2)')")
        page.locator(".answer button").click()
        page.fill("#dialog-input", " deep  blue ")
        page.click("#dialog-yes")
        page.wait_for_selector(".queued:has-text('deep blue')")
        page.wait_for_selector("#teach:text-is('Teach 1 picture'):enabled")
        assert page.locator(".new-name:visible").input_value() == "deep blue"
        page.evaluate("""async () => {
            const classes = await import("/static/classes.js");
            classes.add({waiting: []}, new Promise((done) => window.arrive = done));
        }""")
        page.wait_for_selector("#teach-text:text-is('Loading pictures …')")
        assert page.locator("#teach").is_disabled()
        page.evaluate("() => window.arrive([])")
        page.wait_for_selector("#teach:enabled")


def test_a_test_folder_gives_accuracy_and_confusion_matrix(page: Page, model: Path, tmp_path: Path) -> None:
    with served(model) as remote:
        page.goto(remote.address)
        page.wait_for_selector(card(page, "red"))
        test = folder(tmp_path / "test", red="red", green="green", wren="grey")
        (test / "green" / "mistake.png").write_bytes(png("red", 90, side=40))
        page.locator("#test-files").set_input_files(test)
        page.wait_for_selector(".accuracy:text-is('Accuracy 85.7 %')")
        assert "“wren”" in page.locator("#test-result").inner_text()
        rows = [row.split() for row in page.locator("#test-matrix tr").all_inner_texts()]
        assert rows[1:] == [["green", "75.0", "%", "3", "1"], ["red", "100.0", "%", "·", "3"]]


def test_the_webcam_predicts_is_added_to_a_class_and_may_be_refused(page: Page, model: Path) -> None:
    with served(model) as remote:
        page.goto(remote.address)
        page.wait_for_selector(card(page, "red"))
        page.click("#webcam")
        page.wait_for_selector("#webcam-answer .verdict b")
        page.locator(card(page, "green")).locator(".capture").click()
        page.wait_for_selector("#teach:text-is('Teach 1 picture')")
        page.click("#webcam-keep")
        page.wait_for_selector(".answer .file-name:text-is('webcam.jpg')")
        page.click("#webcam")
        page.wait_for_selector("#webcam-live", state="hidden")
        for refusal, sentence in (("NotAllowedError", "refused: allow it"), ("NotFoundError", "not any webcam")):
            page.evaluate("(name) => navigator.mediaDevices.getUserMedia = () => Promise.reject({name})", refusal)
            page.click("#webcam:enabled")
            page.wait_for_selector(f"#webcam-text:has-text('{sentence}')")


def test_the_token_is_taken_from_the_link_and_removed_from_it(page: Page, model: Path) -> None:
    with served(model, token=TOKEN) as remote:
        page.goto(f"{remote.address}/#token={TOKEN}")
        page.wait_for_selector(card(page, "red"))
        assert TOKEN not in page.url
        assert page.context.cookies() == []

        visitor = page.context.new_page()
        visitor.goto(remote.address)
        visitor.wait_for_selector("#dialog[open]")
        assert visitor.locator("#cards .name").count() == 0
        visitor.fill("#dialog-input", TOKEN)
        visitor.click("#dialog-yes")
        visitor.wait_for_selector(card(visitor, "red"))


def test_the_page_fits_a_phone_and_follows_the_dark_theme(page: Page, model: Path) -> None:
    with served(model) as remote:
        page.goto(remote.address)
        page.wait_for_selector(card(page, "red"))
        light = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        page.emulate_media(color_scheme="dark")
        assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") != light
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("() => document.documentElement.scrollWidth") == 360


def test_another_site_can_do_nothing_with_it(browser: Browser, model: Path, tmp_path: Path) -> None:
    """The browser itself asks from a page of another origin: the same machine, another port."""
    other = tmp_path / "other.safetensors"
    other.write_bytes(model.read_bytes())
    with served(model) as remote, served(other) as elsewhere:
        before = history_of(remote)
        page = browser.new_page()  # its complaints about refused requests are wanted
        page.route(f"{elsewhere.address}/", lambda route: route.fulfill(body="<p>evil</p>", content_type="text/html"))
        page.goto(elsewhere.address)
        attack = """async (target) => {
            await fetch(target + "/api/undo", {method: "POST", mode: "no-cors"}).catch(() => {});
            const form = new FormData();
            form.append("label", "evil");
            form.append("pictures", new Blob(["x"]), "x.png");
            await fetch(target + "/api/teach", {method: "POST", mode: "no-cors", body: form}).catch(() => {});
            return fetch(target + "/api/model").then(() => "read", () => "refused");
        }"""
        assert page.evaluate(attack, remote.address) == "refused"
        assert remote.get("/api/jobs") == []
        assert history_of(remote) == before


def history_of(remote: Remote) -> list[str]:
    return [change["summary"] for change in remote.get("/api/history")]
