"""YAML made to do harm: a few bytes that stand for gigabytes or for hours are refused at once."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from adagauss.cli import app
from adagauss.cli.options import parse_settings
from adagauss.errors import CheckpointError, ConfigError
from adagauss.experiments.run import RunFolder
from adagauss.utils.files import MAX_BYTES, MAX_DEPTH, YamlError, parse_yaml, read_yaml
from tests.faults.budget import budget

LAUGHS = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))])
MERGED = "\n".join(
    ["a0: &a0 {k: 1}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12))]
)
HARMFUL = {
    "aliases of aliases": (LAUGHS, "stands for more than"),
    "merged aliases of aliases": (MERGED, "stands for more than"),
    "a list within itself": ("&a [*a]", "refers to itself"),
    "a mapping within itself": ("a: &a {b: *a}", "refers to itself"),
    "brackets": ("[" * 100_000, "nested more than"),
    "braces": ("{a: " * 50_000, "nested more than"),
    "dashes": ("- " * 50_000, "nested more than"),
    "sixties": ("1" + ":1" * 100_000, "more than 100 characters"),
    "a sixty with a tag": ('!!int "1' + ":1" * 100_000 + '"', "more than 100 characters"),
    "digits": ("9" * 200_000, "more than 100 characters"),
    "length": ("# " + "x" * MAX_BYTES, "longer than 256 KiB"),
    "many values": ("[" + "1," * 20_000 + "1]", "stands for more than"),
    "a call": ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
    "an undefined alias": ("*a", "undefined alias"),
    "a key twice": ("classifier.pooled_shrinkage: 0.5\nclassifier.pooled_shrinkage: 0.1", "given twice in line 2"),
    "a list for a key": ("? [a, b]\n: 1", "where the name of a setting should"),
}


@pytest.mark.parametrize("case", HARMFUL)
def test_harmful_yaml_is_refused_with_the_reason(case: str) -> None:
    text, reason = HARMFUL[case]
    with pytest.raises(YamlError, match=reason) as raised:
        parse_yaml(text)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 200


def test_every_reader_refuses_harmful_yaml(tmp_path: Path) -> None:
    text, _ = HARMFUL["aliases of aliases"]
    with pytest.raises(ConfigError, match="the value cannot be read"):
        parse_settings([f"drift={text}"])
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.yaml is not readable YAML"):
        RunFolder(tmp_path).config  # noqa: B018
    result = CliRunner().invoke(app, ["run", "--dataset", "digits", "--config", str(tmp_path / "config.yaml")])
    assert isinstance(result.exception, ConfigError)
    assert "cannot be read" in str(result.exception)


def test_aliases_and_nesting_within_bounds_are_read() -> None:
    shared = ["x", "y"]
    content = {"one": shared, "two": {"three": shared, "four": [shared] * 5}}
    text = yaml.safe_dump(content)
    assert "*id001" in text
    assert parse_yaml(text) == content
    assert parse_yaml("base: &base {a: 1, b: 2}\nmine: {<<: *base, b: 3}")["mine"] == {"a": 1, "b": 3}
    deep = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert parse_yaml(deep) == yaml.safe_load(deep)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a: \xe9", "a: é".encode("utf-16"), b"a: \x00"])
def test_files_that_are_not_utf8_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(YamlError):
        read_yaml(tmp_path / "file")


def test_utf8_is_read_whatever_the_locale(tmp_path: Path) -> None:
    for mark in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "file").write_bytes(mark + "a: é".encode())
        assert read_yaml(tmp_path / "file") == {"a": "é"}


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(YamlError, match="not a file"):
        read_yaml(tmp_path / "pipe")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=20,
)


@budget(200)
@given(value=plain)
def test_written_values_are_read_unchanged(value: Any) -> None:
    text = yaml.safe_dump(value, sort_keys=False)
    assert parse_yaml(text) == yaml.safe_load(text)


@budget(300)
@given(text=st.text(alphabet="ab:,[]{}&*-?!<>|'\"#%@ \n\t01.", max_size=60) | st.text(max_size=40))
def test_any_text_is_a_value_or_a_reason(text: str) -> None:
    try:
        expected = repr(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError, TypeError):
        expected = "nothing"
    with suppress(YamlError):  # bounded further than the usual loader: it refuses a key given twice, say
        assert repr(parse_yaml(text)) == expected
