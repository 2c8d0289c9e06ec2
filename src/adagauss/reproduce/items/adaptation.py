"""Figures on how the memory follows the network."""

from __future__ import annotations

from collections.abc import Sequence

from adagauss.reproduce.curves import Plotted, at_least, more
from adagauss.reproduce.items.places import CIFAR, OTHER_DATA, SUBSET
from adagauss.reproduce.items.rows import ADAGAUSS
from adagauss.reproduce.plan import Item, Where

FROZEN, KEPT, ADAPTED = "frozen after task 1", "trained, not adapted", "trained, adapted"


def _case(case: str, quantity: str = "A_last, %") -> Plotted:
    return Plotted(case, {"case": case, "quantity": quantity})


MOTIVATION = Item(
    "motivation",
    "Why Gaussians must follow the network",
    "Fig. 1",
    (ADAGAUSS,),
    SUBSET,
    (
        more("Adapted Gaussians are more accurate than those that are not.", _case(ADAPTED), _case(KEPT)),
        more(
            "A network that keeps learning, with adapted Gaussians, is more accurate than a frozen one.",
            _case(ADAPTED),
            _case(FROZEN),
        ),
        more(
            "Without adaptation, memorised Gaussians are farther from the real ones (symmetric KL).",
            _case(KEPT, "symmetric KL"),
            _case(ADAPTED, "symmetric KL"),
        ),
    ),
    study="motivation",
    left_out=OTHER_DATA,
    alias="fig1",
)


def _memory(memory: str, quantity: str, name: str) -> Plotted:
    return Plotted(name, {"memory": memory, "quantity": quantity})


DISTANCES = Item(
    "distances",
    "Distance of memorised to real statistics",
    "figure on adaptation, and its appendix for CUB-200",
    (ADAGAUSS,),
    {"paper": (Where("imagenet-subset-10"), Where("cub-10")), "cpu": (Where("cifar100-10"),)},
    tuple(
        more(
            f"Adapted {name} are nearer to the real ones than after EFC's update of the means (paper: by {by}).",
            _memory("EFC's update", quantity, "distance with EFC's update"),
            _memory("as run", quantity, "adapted"),
            relative=True,
        )
        for quantity, name, by in (
            ("mean", "means", "29 %"),
            ("covariance", "covariances", "39 %"),
            ("kl", "Gaussians (symmetric KL)", "72 %"),
        )
    ),
    study="distances",
    left_out=OTHER_DATA,
)

TWICE = 2.0


def _unequal(values: Sequence[float]) -> float:
    return max(values) / max(min(values), 1e-12)


SHIFT = Item(
    "shift",
    "Predicted shift of every class in every task",
    "appendix, figure on shifts",
    (ADAGAUSS,),
    CIFAR,
    (
        at_least(
            "Shifts differ between classes (here: in task 2 the class that moves most moves at least twice as far as "
            "the one that moves least).",
            Plotted("largest over smallest shift", {"task": "2"}, _unequal, "shift"),
            lambda _: TWICE,
            "bound",
        ),
    ),
    study="shift",
)
ADAPTATION = (MOTIVATION, DISTANCES, SHIFT)
