"""One file per method; variants and methods with the same network share a file.

`lwf.py` has LwF, SDC, LDC and ADC; `acil.py` ACIL and DS-AL; `pass_.py` PASS and IL2A; `efc.py` EFC and EFC++;
`analytic.py` RanPAC.
"""

from adagauss.methods.base import (
    Method,
    MethodInfo,
    dataset_layers,
    make_method,
    method_info,
    methods,
    register_method,
    resolve_method,
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
]
