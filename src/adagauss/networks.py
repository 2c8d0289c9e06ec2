"""The small MLP used for the distiller φ and the adapter ψ."""

from __future__ import annotations

from torch import nn


def mlp(features: int, width: int) -> nn.Module:
    """Linear(S, d·S) → GELU → Linear(d·S, S)."""
    return nn.Sequential(nn.Linear(features, width * features), nn.GELU(), nn.Linear(width * features, features))
