"""Every command of `docs/guide.md`, on small pictures: the guide cannot rot."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, Photographs, photograph

GUIDE = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(sh|text)\n(.*?)```", GUIDE, re.DOTALL)
COMMANDS = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]
SPRING = ("Bobolink", "Cardinal", "Gray_Catbird", "Indigo_Bunting", "Painted_Bunting")
SUMMER = ("Blue_Grosbeak", "Lazuli_Bunting", "Yellow_breasted_Chat")
SENTENCE = re.compile(
    r"(Taught|Forgot|Wrote|Next:|Gray_Catbird is|accuracy|calibration|class|knows|network|keeps|not kept"
    r"|\w+\.safetensors) "
)


def _shape(line: str) -> str:
    """A line without what depends on the pictures: numbers, and how many of one thing there are."""
    return " ".join(re.sub(r"\d[\d.,]*", "0", line).replace("classes", "class").split())


def test_it_names_every_command_for_models() -> None:
    named = {line.split()[1] for line in COMMANDS}
    assert named == {"teach", "predict", "info", "evaluate", "rename", "forget", "undo", "export", "serve"}


@pytest.mark.nightly
def test_its_commands_do_what_it_says(
    adagauss: Command, photographs: Photographs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason="the guide uses the extra pretrained")
    pytest.importorskip("onnx", reason="the guide uses the extra onnx")
    monkeypatch.chdir(tmp_path)
    for folder, classes in (("spring", SPRING), ("summer", SUMMER), ("garden", ("Mallard",))):
        photographs(tmp_path / "photos" / folder, classes, 4)
    photographs(tmp_path / "photos/test", [*SPRING, *SUMMER], 2, first=50)
    for name in set(re.findall(r"photos/unsorted/(\w+)\.jpg", GUIDE)):
        path = tmp_path / "photos/unsorted" / f"{name}.jpg"
        path.parent.mkdir(exist_ok=True)
        photograph(name.split("_0")[0], 70).save(path)
    served: list[Any] = []
    monkeypatch.setattr("adagauss.deploy.serve.main", lambda *given: served.append(given))
    printed = []
    for line in COMMANDS:
        outcome = adagauss(*shlex.split(line)[1:])
        assert outcome.code == 0, f"{line}: {outcome.err}"
        printed += outcome.out.splitlines()
    assert served == [(Path("birds.safetensors"), "127.0.0.1", 8000, None)]
    for name in ("figures/worst.png", "figures/confusion.png", "birds.onnx", "all.safetensors"):
        assert (tmp_path / name).exists()
    shown = {_shape(line) for line in printed}
    promised = [line for kind, block in BLOCKS if kind == "text" for line in block.splitlines()]
    sentences = [line for line in promised if SENTENCE.match(line)]
    assert len(sentences) > 15
    missing = [line for line in sentences if _shape(line) not in shown]
    assert missing == []
