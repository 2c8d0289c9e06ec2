"""What the project says about itself in several files agrees."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import adagauss

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
YAML_FILES = [
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.cff", ".*.yaml", ".github/**/*.yml")
    for path in sorted(ROOT.glob(pattern))
]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere() -> None:
    cited = yaml.safe_load(read("CITATION.cff"))["version"]
    newest = re.findall(r"^## (\S+)", read("CHANGELOG.md"), re.MULTILINE)[0]
    assert PROJECT["version"] == adagauss.__version__ == cited == newest


@pytest.mark.parametrize("name", YAML_FILES)
def test_yaml_files_can_be_read(name: str) -> None:
    assert yaml.safe_load(read(name))


def test_packages_with_hashes_have_the_tested_versions() -> None:
    tested = set(read("constraints.txt").lower().replace("_", "-").split())
    lines = [line for line in read(".ci/requirements.txt").lower().replace("_", "-").splitlines() if line[0] != "#"]
    found = [re.fullmatch(r"(\S+==\S+?)(\+cpu)? --hash=sha256:[0-9a-f]{64}", line) for line in lines]
    names = {match[1] for match in found if match}
    assert len(names) == len(lines)
    assert {name for name in names if not name.startswith("setuptools==")} <= tested
    needed = {re.split(r"[^\w-]", text)[0] for text in PROJECT["dependencies"]}
    assert needed <= {name.split("==")[0] for name in names}


def test_every_python_it_claims_is_tested() -> None:
    claimed = [text.split(" :: ")[-1] for text in PROJECT["classifiers"] if " :: Python :: 3." in text]
    tested = yaml.safe_load(read(".github/workflows/tests.yml"))["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert claimed == tested


def test_every_requirement_is_among_the_tested_versions() -> None:
    def plain(requirement: str) -> str:
        return re.split(r"[><=\[]", requirement)[0].strip().lower().replace("_", "-")

    tested = {plain(line) for line in read("constraints.txt").splitlines()}
    extras = PROJECT["optional-dependencies"]
    required = {plain(text) for texts in (PROJECT["dependencies"], *extras.values()) for text in texts}
    assert required - tested - {"adagauss", "timm"} == set(), "timm is tested where it is installed"
