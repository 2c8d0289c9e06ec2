"""What the README promises first is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_first_two_commands_are_targets_of_the_makefile() -> None:
    commands = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert commands[:2] == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{command}:" in makefile for command in commands)


def test_every_file_it_links_to_is_there() -> None:
    links = re.findall(r"\]\((?!http)([^)]+)\)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []
