"""The report: seeds, protocols, unfinished runs, hostile names, commands, and damaged folders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

from adagauss.analysis.report import Report
from adagauss.analysis.report import write_report as write_whole_report
from adagauss.errors import ConfigError
from adagauss.experiments.run import RunFolder
from adagauss.utils.progress import escape_control_chars
from tests.analysis.made_runs import config_of, made_run

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "two\nlines\x1b[31m",
    "\u202egnp.exe",
    "שלום עולם",
    "w" * 3000,
    "]]></style><b>",
    "&lt;not markup&gt;",
]
VOID = ("meta", "br", "img")


def write_report(runs: Sequence[Path], out: Path, study: str = "none") -> Report:
    """Without figures, which take most of the time."""
    return write_whole_report(runs, out, study=study)


class Checking(HTMLParser):
    """Follows the elements of a page, which must be closed in order, and keeps text and what could act."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.elements: set[str] = set()
        self.acting: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        for key, value in attrs:
            if key.startswith("on") or (
                key in ("href", "src") and not str(value).startswith(("#", "data:image/svg+xml;base64,"))
            ):
                self.acting.append(f"{tag} {key}={value}")
            if key == "id":
                self.ids.append(str(value))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def shown(path: Path) -> Checking:
    page = Checking()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    assert page.acting == []
    assert not page.elements & {"script", "iframe", "object", "link", "form", "foreignobject"}
    assert len(set(page.ids)) == len(page.ids), "two elements have the same name"
    return page


def text_of(path: Path) -> str:
    return " ".join(" ".join(shown(path).text).split())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "report.html"


def test_seeds_are_averaged_and_a_single_one_has_no_spread(tmp_path: Path, out: Path) -> None:
    for seed, right in ((0, 0.5), (1, 0.7)):
        made_run(tmp_path / f"a{seed}", config_of("finetune", seed=seed), right=right)
    made_run(tmp_path / "b", config_of("frozen"), right=0.9)
    written = write_report([tmp_path / "a0", tmp_path / "a1", tmp_path / "b"], out)
    (groups,) = written.sections.values()
    assert list(groups) == ["frozen", "finetune"], "the best method comes first"
    text = text_of(out)
    assert "finetune 60.0 % ± 14.1 A_last" in text
    assert "frozen 90.0 % A_last" in text
    assert "seeds 0, 1; not every line has all seeds" in text


def test_the_page_allows_only_its_own_style_and_images(tmp_path: Path, out: Path) -> None:
    write_report([made_run(tmp_path / "run", config_of())], out)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', out.read_text(encoding="utf-8"))
    assert policy is not None
    assert policy[1].split("; ")[:3] == [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "img-src data:",
    ]


def test_hostile_names_are_text_everywhere(tmp_path: Path, out: Path) -> None:
    config = config_of("adagauss", (4, 4), dataset='folder:/tmp/<b>"birds"')
    hostile = {"source": "<script>1</script>", "processor": "a\x1b]0;b\x07", "threads": {"<i>": [1]}, "<u>": "\u202e"}
    folder = tmp_path / "<script>run\n"
    made_run(folder, config, names=HOSTILE, right=0.5, environment=hostile)
    RunFolder(folder).write_json("origins.json", {"drift.kind": "<img src=x>", "memory.kind": 3})
    write_report([folder], out, study="recency")
    page = shown(out)
    text = "".join(page.text)
    for label in HOSTILE[:5]:
        assert escape_control_chars(label) in text
    assert not set(text) & set("\x1b\x07\u202e")
    assert "w" * 500 not in out.read_text(encoding="utf-8"), "a name of any length is cut"


def test_unfinished_runs_are_shown_separately_up_to_their_last_task(tmp_path: Path, out: Path) -> None:
    made_run(tmp_path / "whole", config_of(sizes=(2, 2, 2)))
    made_run(tmp_path / "part", config_of(sizes=(2, 2, 2), seed=1), done=2)
    made_run(tmp_path / "started", config_of(sizes=(2, 2, 2), seed=2), done=0)
    written = write_report([tmp_path], out)
    assert [list(groups) for groups in written.sections.values()] == [["finetune", "finetune, 2 of 3 tasks"]]
    assert [path.name for path in written.skipped] == ["started"]
    text = text_of(out)
    assert "unfinished: after 2 of 3 tasks" in text
    assert "has no finished task yet" in text


def test_each_protocol_and_dataset_has_its_own_section(tmp_path: Path, out: Path) -> None:
    made_run(tmp_path / "a", config_of(sizes=(2, 2)))
    made_run(tmp_path / "b", config_of(sizes=(2, 2, 2)))
    RunFolder(made_run(tmp_path / "c", config_of(sizes=(2, 2)))).write_json(
        "data.json", {"content of the test images": "0123456789"}
    )
    written = write_report([tmp_path], out)
    assert list(written.sections) == [
        "digits, 2 tasks (test images not recorded)",
        "digits, 3 tasks",
        "digits, 2 tasks (test images 01234567)",
    ]
    assert "The runs follow 3 different protocols" in text_of(out)


def test_different_code_versions_are_noted(tmp_path: Path, out: Path) -> None:
    made_run(tmp_path / "a", config_of())
    made_run(tmp_path / "b", config_of(seed=1), environment={"adagauss": "0.1", "source": "def"})
    write_report([tmp_path], out)
    assert "runs of 2 different code versions" in text_of(out)


def test_the_commands_of_the_runs_are_shown(tmp_path: Path, out: Path) -> None:
    started = "adagauss compare --methods finetune --sizes '2,2'"
    path = made_run(tmp_path / "a", config_of(), environment={"command": started})
    write_report([path], out)
    assert f"Started with {started}" in text_of(out)


def test_settings_are_shown_with_their_origins(tmp_path: Path, out: Path) -> None:
    config = config_of("adagauss", settings={"drift.kind": "affine"})
    write_report([made_run(tmp_path / "a", config)], out)
    text = text_of(out)
    assert "drift.kind affine settings" in text
    assert "representation.later.epochs 20 few images" in text


def test_a_run_is_not_counted_twice(tmp_path: Path, out: Path) -> None:
    first = made_run(tmp_path / "a", config_of())
    copy = made_run(tmp_path / "b", config_of())
    written = write_report([first, first, copy], out)
    assert len(written.runs) == 1
    assert "would be counted twice" in next(iter(written.skipped.values()))


def test_worst_classes_come_first_with_the_classes_they_are_confused_with(tmp_path: Path, out: Path) -> None:
    path = made_run(tmp_path / "run", config_of(sizes=(3, 3)), names=list("abcdef"), right=1.0)
    folder = RunFolder(path)
    evaluation, facts = folder.evaluation(1)
    evaluation.predicted[evaluation.true == 4] = 1  # e is always confused with b
    folder.write_evaluation(1, evaluation, facts)
    write_report([path], out)
    assert "confused with e 2 0.0 10 b (100 %) a 1 100.0 10 –" in text_of(out)


def test_a_thousand_classes_stay_a_small_page(tmp_path: Path, out: Path) -> None:
    names = [f"class of a rather long name, number {number}" for number in range(1000)]
    for seed in range(2):
        made_run(tmp_path / f"run{seed}", config_of(sizes=(100,) * 10, seed=seed), names=names, images=1, right=1.0)
    write_report([tmp_path], out, study="recency")
    assert out.stat().st_size < 2_000_000
    assert names[999] in text_of(out)


def test_the_same_runs_give_the_same_bytes(tmp_path: Path, out: Path) -> None:
    made_run(tmp_path / "run", config_of())
    write_report([tmp_path / "run"], out, study="recency")
    before = out.read_bytes()
    write_report([tmp_path / "run"], out, study="recency")
    assert out.read_bytes() == before


def test_nothing_is_written_if_no_run_can_be_shown(tmp_path: Path, out: Path) -> None:
    out.write_text("before")
    with pytest.raises(ConfigError, match=r"none of the runs can be shown: .* is not a run folder"):
        write_report([tmp_path / "nowhere"], out)
    assert out.read_text() == "before"


def test_evaluations_of_another_run_are_refused(tmp_path: Path, out: Path) -> None:
    path = made_run(tmp_path / "run", config_of(sizes=(2, 2)))
    other = made_run(tmp_path / "other", config_of(sizes=(3, 1)))
    (path / "tasks/01/evaluation.safetensors").write_bytes((other / "tasks/01/evaluation.safetensors").read_bytes())
    with pytest.raises(ConfigError, match="from different runs"):
        write_report([path], out)
