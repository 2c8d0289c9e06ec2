"""Values of ``--set``."""

from __future__ import annotations

from typing import Any

import pytest

from adagauss.cli.options import parse_settings
from adagauss.data.augment import Augmentation
from adagauss.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("timm:", "timm:"),
        (" timm: ", "timm:"),
        ("timm:resnet18", "timm:resnet18"),
        ("{a: 1}", {"a": 1}),
        ("a: 1", {"a": 1}),
        ("[1, 2]", [1, 2]),
        ("none", "none"),
        ("", None),
    ],
)
def test_values_are_yaml_but_for_a_bare_colon(text: str, value: Any) -> None:
    assert parse_settings([f"x={text}"]) == {"x": value}


@pytest.mark.parametrize("text", ["[1,", "'a", "a: b: c", "@x", "{a: 1", "2020-13-45", "\x07"])
def test_an_unreadable_value_is_one_short_message(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as raised:
        parse_settings([f"x={text}"])
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 200


def test_messages_do_not_name_the_exception() -> None:
    with pytest.raises(ConfigError, match=r"^augmentation\.resized_crop_scale: must be two shares"):
        Augmentation.of({"resized_crop_scale": (0.5, 0.1)}, where="augmentation.")
