"""One file per method."""

from adagauss.methods.base import (
    Method,
    MethodInfo,
    dataset_layers,
    make_method,
    method_info,
    methods,
    register_method,
    resolve_method,
    stored_method_name,
    trait_layers,
)

__all__ = [
    "Method",
    "MethodInfo",
    "dataset_layers",
    "make_method",
    "method_info",
    "methods",
    "register_method",
    "resolve_method",
    "stored_method_name",
    "trait_layers",
]  # fmt: skip
