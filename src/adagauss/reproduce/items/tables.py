"""The tables of the paper."""

from __future__ import annotations

from typing import Any

from adagauss.reproduce.claims import above, below, falling
from adagauss.reproduce.items.rows import ADAGAUSS, NO_ANTI_COLLAPSE
from adagauss.reproduce.plan import Item, Row, Where

METHODS = {
    "EWC": "ewc",
    "LwF": "lwf",
    "PASS": "pass",
    "IL2A": "il2a",
    "SSRE": "ssre",
    "FeTrIL": "fetril",
    "FeCAM": "fecam",
    "ACIL": "acil",
    "DS-AL": "dsal",
    "EFC": "efc",
}
"""Names in the paper's tables, and ours."""
OTHERS = {title: Row(title, name, paper={"method": title}) for title, name in METHODS.items()}


def others(*titles: str) -> tuple[Row, ...]:
    """Rows of other methods."""
    return tuple(OTHERS[title] for title in titles)


SCRATCH = ("EWC", "LwF", "PASS", "IL2A", "SSRE", "FeTrIL", "FeCAM", "DS-AL", "EFC")
FINE_GRAINED = tuple(title for title in SCRATCH if title != "SSRE")
HALF = ("PASS", "SSRE", "FeTrIL", "FeCAM", "ACIL", "DS-AL")

TABLE1 = Item(
    "table1",
    "From scratch, equal tasks",
    "main table, and its version with deviations",
    (*others(*SCRATCH), ADAGAUSS),
    {
        "paper": tuple(Where(f"{data}-{t}") for data in ("cifar100", "tiny", "imagenet-subset") for t in (10, 20)),
        "cpu": (Where("cifar100-10"), Where("tiny-10", 1, ("LwF", "FeTrIL", "FeCAM", "DS-AL", "EFC", "AdaGauss"))),
    },
    (
        above("AdaGauss has the highest accuracy after the last task of all methods.", "AdaGauss", *SCRATCH),
        above(
            "AdaGauss has the highest accuracy averaged over tasks of all methods.",
            "AdaGauss",
            *SCRATCH,
            quantity="a_inc",
        ),
    ),
    table=("main_from_scratch_mean_std", "main_from_scratch_mean"),
    left_out={
        "cpu": "Without ImageNet-Subset, whose pictures need large networks, and without 20 tasks, which take twice as "
        "long; TinyImageNet with six methods and one seed."
    },
)

TABLE2 = Item(
    "table2",
    "Fine-grained datasets, pretrained network",
    "fine-grained table, and its version with deviations",
    (*others(*FINE_GRAINED), ADAGAUSS),
    {
        "paper": tuple(Where(f"{data}-{tasks}") for data in ("cub", "aircraft") for tasks in (5, 10, 20)),
        "cpu": (),
    },
    (above("AdaGauss has the highest accuracy after the last task of all methods.", "AdaGauss", *FINE_GRAINED),),
    table=("finegrained_mean_std", "finegrained_mean"),
    left_out={
        "cpu": "Not run: thirty images per class teach a new bottleneck on a pretrained network little. What "
        "CUB-200 gave in 18 minutes a run, AdaGauss far below FeCAM, is in docs/reproduction.md."
    },
)

HALF_FIRST = Item(
    "half",
    "Half of the classes first",
    "appendix, half dataset",
    (*others(*HALF), ADAGAUSS),
    {
        "paper": tuple(Where(f"{data}-half-{tasks}") for data in ("cifar100", "imagenet-subset") for tasks in (5, 10)),
        "cpu": (Where("cifar100-half-5", 1),),
    },
    (
        above("With half of the classes first, DS-AL on frozen features is better than AdaGauss.", "DS-AL", "AdaGauss"),
        above("AdaGauss is better than PASS and SSRE.", "AdaGauss", "PASS", "SSRE"),
    ),
    table=("half_dataset",),
    left_out={"cpu": "Only CIFAR-100 with five more tasks, one seed."},
)

TRUNKS: dict[str, tuple[str, dict[str, Any]]] = {
    "ResNet-18": ("Resnet18", {}),
    "ConvNeXt-S": ("ConvNext (small)", {"backbone.name": "timm:convnext_small"}),
    "ViT-S": (
        "ViT (small)",
        {
            "backbone.name": "timm:vit_small_patch16_224",
            "backbone.train_blocks": "last:1",
            "backbone.train_bottleneck": False,
        },
    ),
}
CPU_TRUNKS: dict[str, dict[str, Any]] = {
    "protocol's network": {},
    "at a quarter of the resolution": {"backbone.stem": "large"},
    "ResNet-32, half resolution": {"backbone.name": "resnet32", "backbone.stem": "halved"},
}
BACKBONES = Item(
    "backbones",
    "Other networks",
    "appendix, backbones",
    (
        *(Row(label, settings=settings, paper={"backbone": name}) for label, (name, settings) in TRUNKS.items()),
        *(Row(label, settings=settings) for label, settings in CPU_TRUNKS.items()),
    ),
    {
        "paper": tuple(Where(f"{data}-{t}", only=tuple(TRUNKS)) for data in ("cub", "aircraft") for t in (10, 20)),
        "cpu": (Where("cifar100-10", 1, tuple(CPU_TRUNKS)),),
    },
    (
        above("ConvNeXt-S is better than ResNet-18.", "ConvNeXt-S", "ResNet-18"),
        above("ViT-S is better than ResNet-18.", "ViT-S", "ResNet-18"),
        above(
            "A stronger network makes AdaGauss better (here: trained from scratch).",
            "ResNet-32, half resolution",
            "at a quarter of the resolution",
        ),
    ),
    table=("backbones",),
    left_out={
        "cpu": "ConvNeXt-S and ViT-S are too large for two cores: three small networks from scratch stand in, with one "
        "seed. The protocol's network works at half the resolution of the images."
    },
)

NORMS = {
    "no batch norm": ("Resnet18 (no BN)", "none"),
    "frozen after the first task": ("Resnet18 (freezed BN)", "frozen"),
    "normal": ("Resnet18", "train"),
}
BATCH_NORM = Item(
    "batchnorm",
    "Batch norm",
    "appendix, batch norm",
    tuple(
        Row(label, settings={} if policy == "train" else {"backbone.batch_norm": policy}, paper={"backbone": name})
        for label, (name, policy) in NORMS.items()
    ),
    {
        "paper": tuple(Where(name) for name in ("cifar100-10", "imagenet-subset-10", "cub-10")),
        "cpu": (Where("cifar100-10"),),
    },
    (falling("Normal batch norm is best, frozen second, none last.", *reversed(NORMS)),),
    table=("batch_norm",),
    left_out={"cpu": "CUB-200: a pretrained network without its batch norms is random again."},
)


def _ablation(classifier: str, covariance: str, mean: bool, adapted: bool, anti_collapse: bool, shrink: bool) -> Any:
    """What finds a row in the paper's ablation table."""
    return {
        "classifier": classifier,
        "cov_matrix": covariance,
        "adapt_mean": mean,
        "adapt_cov": adapted,
        "l_ac": anti_collapse,
        "shrink_0_5_instead_of_l_ac": shrink,
    }


NEAREST = {"classifier.kind": "nearest_mean"}
SHRUNK = {"memory.shrinkage": 0.5}
ABLATION_ROWS = (
    Row(
        "1 nearest mean, mapped means",
        replay={**NEAREST, "memory.kind": "means"},
        paper=_ablation("NMC", "None", True, True, True, False),
    ),
    Row("2 nearest mean, mapped samples", replay=NEAREST, paper=_ablation("NMC", "Full", True, True, True, False)),
    Row(
        "3 Bayes, diagonal covariances",
        replay={"memory.covariance": "diagonal"},
        paper=_ablation("Bayes", "Diagonal", True, True, True, False),
    ),
    Row(
        "4 nothing adapted, no anti-collapse",
        settings=NO_ANTI_COLLAPSE,
        replay={**SHRUNK, "drift.adapt_mean": False, "drift.adapt_covariance": False},
        paper=_ablation("Bayes", "Full", False, False, False, False),
    ),
    Row(
        "5 only covariances adapted",
        replay={"drift.adapt_mean": False},
        paper=_ablation("Bayes", "Full", False, True, True, False),
    ),
    Row(
        "6 only means adapted",
        replay={"drift.adapt_covariance": False},
        paper=_ablation("Bayes", "Full", True, False, True, False),
    ),
    Row(
        "7 no anti-collapse, shrinkage 0.5",
        settings=NO_ANTI_COLLAPSE,
        replay=SHRUNK,
        paper=_ablation("Bayes", "Full", True, True, False, True),
    ),
    Row("8 AdaGauss", paper=_ablation("Bayes", "Full", True, True, True, False)),
)
_ROW = {row.label[0]: row.label for row in ABLATION_ROWS}
ABLATION = Item(
    "ablation",
    "What each part of AdaGauss brings",
    "ablation table",
    ABLATION_ROWS,
    {"paper": (Where("cifar100-10"), Where("imagenet-subset-10")), "cpu": (Where("cifar100-10"),)},
    (
        above("All parts together are best.", _ROW["8"], *(label for key, label in _ROW.items() if key != "8")),
        falling("Full covariances are better than diagonal ones, and those than none.", *(_ROW[key] for key in "832")),
        falling("Adapting both beats means alone, and those covariances alone.", *(_ROW[key] for key in "865")),
        above("Anti-collapse is better than shrinking covariances instead.", _ROW["8"], _ROW["7"]),
        below(
            "Nothing adapted and no anti-collapse is worst.",
            _ROW["4"],
            *(label for key, label in _ROW.items() if key != "4"),
        ),
    ),
    table=("ablation",),
)

TIMED = ("LwF", "FeTrIL", "FeCAM", "SSRE", "EFC")
LINEAR = Row("AdaGauss, linear head", "adagauss-linear", paper={"method": "AdaGauss (lin. head)"})
TIME = Item(
    "time",
    "Training and inference time",
    "time table",
    (*others(*TIMED), ADAGAUSS, LINEAR),
    {"paper": (Where("cifar100-10"),), "cpu": (Where("cifar100-10"),)},
    (
        above("AdaGauss trains no longer than EFC.", "EFC", "AdaGauss", quantity="training_min"),
        above("SSRE trains longest.", "SSRE", "LwF", "FeTrIL", "FeCAM", "EFC", "AdaGauss", quantity="training_min"),
        above(
            "FeCAM, whose network is trained once, is much faster to train.",
            "AdaGauss",
            "FeCAM",
            quantity="training_min",
        ),
    ),
    table=("time_complexity",),
    times=True,
    left_out={
        "cpu": "Wall clock of one thread, on a machine that may have had other work: read "
        "the times as orders of magnitude."
    },
)

TABLES = (TABLE1, TABLE2, HALF_FIRST, BACKBONES, BATCH_NORM, ABLATION, TIME)
