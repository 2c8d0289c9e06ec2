"""Layers of settings: what is over what, and where each value says it came from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adagauss.core.config import Layer, existing, flatten, override, plain
from adagauss.data.dataset import Trait, dataset_info
from adagauss.errors import ConfigError
from adagauss.experiments.config import make_config
from adagauss.experiments.protocols import PROTOCOLS
from adagauss.methods import base, make_method, methods, resolve_method


def test_every_value_names_the_layer_that_set_it_last() -> None:
    layers = [
        Layer("weak", {"augmentation.flip": False, "backbone.features": 8}),
        Layer("strong", {"backbone.features": 9}),
    ]
    resolved = resolve_method("adagauss", "paper", {"classifier.pooled_shrinkage": 0.5}, layers)
    expected = {
        "augmentation.flip": "weak",
        "backbone.features": "strong",
        "classifier.pooled_shrinkage": "settings",
        "drift.reduction": "preset paper",
        "backbone.name": "method",
    }
    assert {key: resolved.origins[key] for key in expected} == expected
    assert resolved.origins.keys() == flatten(plain(resolved.config)).keys()


def test_a_layer_that_repeats_a_value_is_its_origin() -> None:
    name = make_method("adagauss").backbone.name
    assert resolve_method("adagauss", settings={"backbone.name": name}).origins["backbone.name"] == "settings"


def test_the_fields_of_an_exchanged_part_come_from_who_exchanged_it() -> None:
    exchange = Layer("exchange", {"drift.kind": "ldc"})
    resolved = resolve_method("adagauss", layers=[exchange, Layer("after", {"drift.views": 2})])
    origins = {key: name for key, name in resolved.origins.items() if key.startswith("drift.")}
    assert origins.pop("drift.views") == "after"
    assert set(origins.values()) == {"exchange"}
    assert not flatten(plain(resolved.config)).keys() & {"drift.network", "drift.samples"}


def test_naming_the_kind_that_is_there_leaves_the_origins_of_its_fields() -> None:
    origins = resolve_method("adagauss", settings={"drift.kind": "adapter"}).origins
    assert (origins["drift.kind"], origins["drift.network"]) == ("settings", "method")


def test_a_strict_layer_refuses_what_a_soft_one_passes_over() -> None:
    settings = {"classifier.no_such": 1, "augmentation.flip": False}
    with pytest.raises(ConfigError, match=r"unknown setting 'classifier\.no_such'"):
        make_method("adagauss", layers=[Layer("strict", settings)])
    assert not make_method("adagauss", layers=[Layer("soft", settings, strict=False)]).augmentation.flip


def test_a_soft_layer_leaves_off_what_is_off_but_sets_what_is_automatic() -> None:
    assert make_method("acil").backbone.features is make_method("acil").backbone.input_size is None
    soft = Layer("soft", {"backbone.features": 8, "backbone.input_size": 64}, strict=False)
    backbone = make_method("acil", layers=[soft]).backbone
    assert (backbone.features, backbone.input_size) == (None, 64)


def test_presets_give_way_to_layers_and_layers_to_the_user() -> None:
    soft = Layer("soft", {"augmentation.policy": "none", "classifier.pooled_shrinkage": 0.25}, strict=False)
    values = flatten(plain(make_method("adagauss", settings={"classifier.pooled_shrinkage": 0.75}, layers=[soft])))
    assert (values["augmentation.policy"], values["classifier.pooled_shrinkage"]) == ("none", 0.75)


def test_epochs_reach_parts_that_the_user_put_in_but_not_what_the_user_set() -> None:
    settings = {"drift.kind": "adapter", "memory.kind": "means", "representation.first.epochs": 7}
    resolved = resolve_method("finetune", settings=settings, epochs=4)
    values = flatten(plain(resolved.config))
    stages = ("representation.first", "representation.later", "drift.recipe")
    assert [values[f"{stage}.epochs"] for stage in stages] == [7, 4, 2]
    assert [resolved.origins[f"{stage}.epochs"] for stage in stages] == ["settings", "epochs", "epochs"]


def test_a_layer_is_silent_where_others_speak_for_a_whole_part() -> None:
    layer = Layer("one", {"a.b": 1, "a.c": 2, "d": 3})
    assert layer.without({"a": {"b": 5}, "d": 4}).settings == {"a.c": 2}


def test_override_does_not_change_what_it_is_given() -> None:
    settings = {"a": {"kind": "x", "b": {"c": 1}}, "d": 2}
    result = override(settings, {"a.b.c": 5, "d": 3, "e.f": 4})
    assert settings == {"a": {"kind": "x", "b": {"c": 1}}, "d": 2}
    assert result == {"a": {"kind": "x", "b": {"c": 5}}, "d": 3, "e": {"f": 4}}


def test_existing_passes_over_what_a_method_does_not_have_or_has_turned_off() -> None:
    settings = {"a": {"b": 1, "c": {"d": False}, "off": None}, "e": {}}
    changes = {"a.b": 2, "a.c.d": 3, "a.off": 1, "a.x": 4, "y.z": 5}
    assert existing(settings, changes) == {"a.b": 2, "a.c.d": 3}


def test_every_trait_says_what_it_means_in_settings_that_exist() -> None:
    known = {key for name in methods() for key in flatten(plain(make_method(name)))}
    assert base.TRAIT_SETTINGS.keys() == set(Trait)
    assert all(settings.keys() <= known for settings in base.TRAIT_SETTINGS.values())


def test_a_dataset_sets_nothing_but_images_and_network() -> None:
    info = dataset_info("digits")
    with pytest.raises(ConfigError, match=r"dataset 'digits' sets classifier\.pooled_shrinkage: .* state a trait"):
        replace(info, settings={"classifier.pooled_shrinkage": 0.5})


def test_a_protocol_shows_in_the_origins_of_a_run() -> None:
    chosen = PROTOCOLS["cub-10"]
    origins = make_config("adagauss", chosen.stream, protocol=chosen).origins
    assert origins["backbone.name"] == "protocol cub-10"
    assert origins["representation.terms.distillation.weight"] == "preset reference in protocol"
    assert origins["augmentation.resized_crop"] == "photographs"
    tiny = PROTOCOLS["tiny-10"]
    assert make_config("il2a", tiny.stream, protocol=tiny).origins["augmentation.crop_padding"] == "authors"
