"""The registry behind parts, methods, backbones and datasets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from adagauss.backbones import backbones, register_backbone
from adagauss.backbones.registry import Backbone, BackboneSpec
from adagauss.core.config import Part
from adagauss.data.dataset import Dataset, ReadOptions, datasets, register_dataset
from adagauss.errors import ConfigError
from adagauss.methods import Method, methods, register_method
from adagauss.parts.classifiers import NearestMean
from adagauss.utils.registry import Registry


def one() -> int:
    return 1


def two() -> int:
    return 2


def test_a_thing_is_found_by_its_name_and_listed_in_order() -> None:
    registry: Registry[int] = Registry("number")
    registry.register("two", 2, by=two)
    registry.register("one", 1, by=one)
    assert registry.find("two") == 2
    assert list(registry.all()) == ["one", "two"]
    assert "one" in registry
    assert "three" not in registry


def test_an_unknown_name_says_the_nearest() -> None:
    registry: Registry[int] = Registry("number")
    registry.register("two", 2, by=two)
    with pytest.raises(ConfigError, match="unknown number 'twoo'; did you mean 'two'"):
        registry.find("twoo")
    with pytest.raises(ConfigError, match="unknown number '3'"):
        registry.find(3)


def test_a_name_belongs_to_the_code_that_took_it() -> None:
    registry: Registry[int] = Registry("number")
    registry.register("one", 1, by=one)
    with pytest.raises(ConfigError, match=r"test_registry\.two cannot be the number 'one': .*test_registry\.one has"):
        registry.register("one", 2, by=two)
    assert registry.find("one") == 1
    registry.register("one", 11, by=one)
    assert registry.find("one") == 11


def test_a_package_is_imported_when_something_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "numbers_for_a_test"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from adagauss.utils.registry import Registry\nNUMBERS = Registry('number', __name__)\n", encoding="utf-8"
    )
    source = "from numbers_for_a_test import NUMBERS\ndef three(): ...\nNUMBERS.register('three', 3, by=three)\n"
    (package / "three.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import numbers_for_a_test  # type: ignore[import-not-found]

    assert "numbers_for_a_test.three" not in sys.modules
    assert numbers_for_a_test.NUMBERS.find("three") == 3


def test_every_registry_refuses_a_name_that_is_taken() -> None:
    before = [methods(), backbones(), datasets(), Part.kinds("classifier")]

    def method() -> Method:
        raise AssertionError

    def backbone(spec: BackboneSpec) -> Backbone:
        raise AssertionError

    def dataset(options: ReadOptions) -> Dataset:
        raise AssertionError

    with pytest.raises(ConfigError, match="cannot be the method 'adagauss'"):
        register_method("adagauss", title="", family="", stores="", paper="")(method)
    with pytest.raises(ConfigError, match="cannot be the backbone 'resnet18'"):
        register_backbone("resnet18", summary="")(backbone)
    with pytest.raises(ConfigError, match="cannot be the dataset 'digits'"):
        register_dataset("digits", title="", classes=1, images="", licence="", folder="")(dataset)
    with pytest.raises(ConfigError, match="cannot be the classifier 'bayes'"):

        class Another(NearestMean):
            kind = "bayes"

    assert [methods(), backbones(), datasets(), Part.kinds("classifier")] == before
