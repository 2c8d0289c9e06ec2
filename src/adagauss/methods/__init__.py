"""One file per method."""

from adagauss.methods.base import (
    Method,
    MethodInfo,
    make_method,
    method_info,
    methods,
    register_method,
    resolve_method,
    stored_method_name,
)

__all__ = [
    "Method",
    "MethodInfo",
    "make_method",
    "method_info",
    "methods",
    "register_method",
    "resolve_method",
    "stored_method_name",
]
