"""Settings: readable errors, dotted overrides, exchange of parts, and methods as plain data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adagauss.backbones import BackboneConfig
from adagauss.core.config import Config, Part, flatten, plain
from adagauss.core.train import Recipe
from adagauss.errors import ConfigError
from adagauss.methods import Method, make_method, methods
from adagauss.parts.classifiers import Bayes, NearestMean
from adagauss.parts.drift import Adapter, NoDrift
from adagauss.parts.representation import Rotations
from adagauss.utils.runtime import RuntimeConfig

VARIANTS = [(name, preset) for name, info in methods().items() for preset in (*info.presets, None)]


def changed(**settings: Any) -> Method:
    return make_method("adagauss", settings={key.replace("__", "."): value for key, value in settings.items()})


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("backbone.nme", "backbone.name"),
        ("augmentation.flipp", "augmentation.flip"),
        ("classifier.shrinkag", "classifier.shrinkage"),
        ("drift.view", "drift.views"),
        ("drift.recipe.epoch", "drift.recipe.epochs"),
        ("memory.flip", "memory.flips"),
        ("representation.heds", "representation.heads"),
        ("representation.first.learning_rat", "representation.first.learning_rate"),
        ("representation.later.learning_rat", "representation.later.learning_rate"),
        ("representation.label_augmentation.wen", "representation.label_augmentation.when"),
        ("representation.terms.distillation.wight", "representation.terms.distillation.weight"),
        ("clasifier.pooled_shrinkage", "classifier"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_method("adagauss", settings={key: 1})
    assert f"did you mean {nearest!r}" in str(caught.value)


def test_a_setting_of_a_term_that_is_not_there_names_the_term() -> None:
    with pytest.raises(ConfigError, match="distilation"):
        changed(representation__terms__distilation__weight=5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("classifier.pooled_shrinkage", 2),
        ("classifier.shrinkage", -1),
        ("drift.recipe.epochs", 0),
        ("drift.network", "mpl"),
        ("representation.later.batch_size", "many"),
        ("representation.terms.anti_collapse.beta", 0),
        ("backbone.features", -3),
        ("backbone.batch_norm", "off"),
        ("augmentation.resized_crop_scale", (0.5, 0.1)),
    ],
)
def test_a_value_out_of_range_is_an_error_that_says_where(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        make_method("adagauss", settings={key: value})
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "nearest"),
    [
        ("classifier.kind", "bays", "bayes"),
        ("drift.kind", "adaptor", "adapter"),
        ("memory.kind", "gaussian", "gaussians"),
        ("representation.label_augmentation.kind", "rotation", "rotations"),
    ],
)
def test_an_unknown_kind_names_the_nearest_known_one(key: str, value: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        make_method("adagauss", settings={key: value})


@pytest.mark.parametrize("options", [[None], "many", 3])
def test_a_value_in_place_of_a_group_of_settings_is_an_error_that_says_where(options: object) -> None:
    with pytest.raises(ConfigError, match=r"backbone\.options needs names and values"):
        BackboneConfig.of({"name": "patches", "options": options})


def test_unknown_methods_and_presets() -> None:
    with pytest.raises(ConfigError, match="did you mean 'adagauss'"):
        make_method("adagaus")
    with pytest.raises(ConfigError, match="did you mean 'paper'"):
        make_method("adagauss", "papr")


def test_nested_settings_reach_their_part_and_no_other() -> None:
    before = flatten(plain(make_method("adagauss")))
    after = flatten(plain(changed(drift__recipe__epochs=7, representation__terms__distillation__weight=3)))
    differing = {key: value for key, value in after.items() if before[key] != value}
    assert differing == {"drift.recipe.epochs": 7, "representation.terms.distillation.weight": 3}


def test_parts_are_exchanged_by_kind_and_forget_the_fields_of_the_old_one() -> None:
    method = make_method("adagauss", settings={"classifier.normalize": False, "classifier.kind": "nearest_mean"})
    assert isinstance(method.classifier, NearestMean)
    assert isinstance(changed(drift__kind="none").drift, NoDrift)
    assert changed(representation__label_augmentation__kind="none").representation.label_augmentation.kind == "none"


def test_naming_the_kind_that_is_there_keeps_its_fields() -> None:
    method = changed(classifier__kind="bayes", classifier__tied=0.5)
    assert isinstance(method.classifier, Bayes)
    assert (method.classifier.shrinkage, method.classifier.pooled_shrinkage) == (3.0, 0.5)


def test_a_part_can_be_given_whole() -> None:
    method = changed(drift={"kind": "adapter", "network": "linear"})
    assert isinstance(method.drift, Adapter)
    assert method.drift.network == "linear"
    assert method.drift.recipe.clip_norm is None


def test_a_term_set_to_null_is_left_out() -> None:
    assert sorted(changed(representation__terms__anti_collapse=None).representation.terms) == [
        "cross_entropy",
        "distillation",
    ]


@pytest.mark.parametrize(("name", "preset"), VARIANTS)
def test_a_method_survives_plain_data_and_json(name: str, preset: str | None) -> None:
    method = make_method(name, preset)
    data = plain(method)
    again = Method.of(json.loads(json.dumps(data)))
    assert plain(again) == data
    assert type(again.classifier) is type(method.classifier)
    assert type(again.drift) is type(method.drift)
    assert list(again.representation.terms) == list(method.representation.terms)


@pytest.mark.parametrize(
    "config",
    [Recipe(), RuntimeConfig(), Bayes(), NearestMean(), make_method("adagauss")],
    ids=lambda config: type(config).__name__,
)
def test_configurations_can_be_compared(config: Config) -> None:
    again = plain(config)
    again.pop("kind", None)
    assert type(config).of(again) == config


def test_presets_differ_where_the_paper_and_its_code_do() -> None:
    paper, reference = make_method("adagauss", "paper"), make_method("adagauss", "reference")
    assert isinstance(paper.classifier, Bayes)
    assert isinstance(reference.classifier, Bayes)
    assert isinstance(reference.representation.label_augmentation, Rotations)
    assert (paper.classifier.log_det, paper.classifier.shrinkage) == (True, 0.0)
    assert (reference.classifier.log_det, reference.classifier.shrinkage) == (False, 3.0)
    assert plain(make_method("adagauss")) == plain(reference)


def test_a_part_defined_by_a_user_is_found_by_its_kind() -> None:
    class Mine(NearestMean):
        kind = "mine_for_a_test"

    try:
        assert isinstance(changed(classifier__kind="mine_for_a_test").classifier, Mine)
    finally:
        Part._registry["classifier"].remove("mine_for_a_test")
