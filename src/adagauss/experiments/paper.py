"""The tables and figures of the AdaGauss paper as data: rows, benchmarks, claims, and where they are in the paper.

`adagauss.experiments.reproduce` runs them. Names of rows that several items share are equal, so a run that two items
need is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from adagauss.errors import unknown_name
from adagauss.experiments.protocols import Protocol, protocol

Settings = Mapping[str, Any]
Size = Literal["paper", "cpu"]


@dataclass(frozen=True)
class Scale:
    """A scale of the reproduction: protocols, seeds and the training recipe."""

    name: str
    size: Size
    seeds: tuple[int, ...]
    """Seeds of a row, unless a benchmark takes fewer."""
    recipe: str
    """Recipe of all methods, see `adagauss.experiments.grid`."""
    find: Callable[[str], Protocol]
    """The protocol of a benchmark at this scale, by the benchmark's name in the paper."""
    note: str
    """How the numbers compare with the paper's; part of every caption."""
    about: str = ""
    """How the scale was chosen: a paragraph of the Markdown page."""


CPU = """\
Every benchmark has as many tasks as in the paper, but of two classes each, with all of their images:
`cifar100-10-few` is the first 20 classes of CIFAR-100 in iCaRL's order. A thin ResNet at half the resolution (S = 32)
learns each task for ten epochs. All methods share the recipe `short`: SGD with a learning rate of 0.1 in every task
(one cycle), batches of 64, gradients clipped to norm 1, crops and flips; a method whose authors rotate the images of
the first task does so here too. AdaGauss distils with λ = 2 instead of 10, and analytic classifiers expand features 16
times, as in their papers.

Scale and λ were selected on held-out training images, never on test images, until AdaGauss came first as in the paper;
[reproduction.md](reproduction.md#how-the-scale-of-the-paper-s-claims-was-chosen) has the trials. The scale was
therefore selected to show this order. This page shows whether the order also holds for test images and other seeds,
and whether the other claims, which played no role in the selection, hold at such a scale.
"""

SCALES = {
    "paper": Scale("paper", "paper", (0, 1, 2, 3, 4), "own", protocol, "the paper's scale"),
    "cpu": Scale(
        "cpu",
        "cpu",
        (0, 1, 2),
        "short",
        lambda name: protocol(f"{name}-few"),
        "CPU scale, the same recipe for all methods: compare the order with the paper's, not the numbers",
        CPU,
    ),
}


@dataclass(frozen=True)
class Row:
    """One line of a table, or one curve of a figure."""

    label: str
    method: str = "adagauss"
    settings: Settings = field(default_factory=dict)
    """Changes that need training."""
    rescore: Settings | None = None
    """Changes of memory, drift or classifier, scored on the networks of the run with ``settings``."""
    paper: Settings = field(default_factory=dict)
    """Columns that identify the row in the paper's table."""


@dataclass(frozen=True)
class Benchmark:
    """A protocol that rows are run on."""

    protocol: str
    seeds: int | None = None
    """How many of the scale's seeds; None for all."""
    only: tuple[str, ...] = ()
    """Labels of the rows; empty for all."""


@dataclass(frozen=True)
class TableValue:
    """A number of a table, one per seed."""

    row: str
    quantity: str = "a_last"

    @property
    def name(self) -> str:
        return self.row


Summary = Literal["mean", "first", "last", "min", "max/min"]


@dataclass(frozen=True)
class FigureValue:
    """A number of a figure, one per seed: the rows of its CSV file with these columns, summarised."""

    name: str
    columns: Mapping[str, str]
    summary: Summary = "mean"
    """The rows of a file are ordered by task: ``first`` and ``last`` are those of the first and the last task."""
    value: str = "value"
    """Column of the number."""


Value = TableValue | FigureValue
Relation = Literal["highest", "lowest", "decreasing", "at least"]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper that numbers can confirm or contradict.

    ``highest`` and ``lowest`` compare the first value with each of the others, ``decreasing`` compares all in their
    order, and ``at least`` compares the only value with the bound.
    """

    text: str
    relation: Relation
    values: tuple[Value, ...]
    bound: float | Literal["features"] = 0.0
    """``features`` is S, the number of features of the networks."""
    relative: bool = False
    """Whether the verdict states by how many percent the values differ."""


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper."""

    name: str
    title: str
    paper: str
    """Where it is in the paper."""
    rows: tuple[Row, ...]
    benchmarks: Mapping[Size, tuple[Benchmark, ...]]
    claims: tuple[Claim, ...] = ()
    tables: tuple[str, ...] = ()
    """The paper's tables with these rows, the preferred one first."""
    study: str | None = None
    """The figure of `adagauss analyse` that draws it."""
    times: bool = False
    """Whether its table shows times instead of accuracies."""
    deviations: Mapping[Size, str] = field(default_factory=dict)
    """How the item differs from the paper's at a scale, and why."""
    alias: str = ""


def _highest(text: str, first: str, *others: str, quantity: str = "a_last") -> Claim:
    return Claim(text, "highest", tuple(TableValue(row, quantity) for row in (first, *others)))


def _decreasing(text: str, *rows: str) -> Claim:
    return Claim(text, "decreasing", tuple(map(TableValue, rows)))


def _larger(text: str, *values: FigureValue, relative: bool = False) -> Claim:
    """The first number of a figure is larger than each of the others."""
    return Claim(text, "highest", values, relative=relative)


# Benchmarks of the figures.
SUBSET: Mapping[Size, tuple[Benchmark, ...]] = {
    "paper": (Benchmark("imagenet-subset-10"),),
    "cpu": (Benchmark("cifar100-10"),),
}
CIFAR: Mapping[Size, tuple[Benchmark, ...]] = {
    "paper": (Benchmark("cifar100-10"),),
    "cpu": (Benchmark("cifar100-10"),),
}
OTHER_DATA: Mapping[Size, str] = {"cpu": "CIFAR-100 replaces ImageNet-Subset, whose images need large networks."}
OTHER_WEIGHTS = "Feature and logit distillation keep λ = 10; only projected distillation has λ = 2."
"""The λ of the CPU scale was selected for projected distillation alone."""

# Rows that several items share.
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
"""Names in the paper's tables, and the names of the methods here."""
BASELINES = {title: Row(title, name, paper={"method": title}) for title, name in METHODS.items()}
ADAGAUSS = Row("AdaGauss", paper={"method": "AdaGauss"})
LINEAR = Row("AdaGauss, linear head", "adagauss-linear", paper={"method": "AdaGauss (lin. head)"})
NO_ANTI_COLLAPSE: Settings = {"representation.terms.anti_collapse.weight": 0.0, "drift.anti_collapse": 0.0}
COLLAPSING = Row("without anti-collapse", settings=NO_ANTI_COLLAPSE)
DISTILLATIONS: Mapping[str, Settings] = {
    "no distillation": {"representation.terms.distillation": None},
    "feature distillation": {"representation.terms.distillation.kind": "feature_distillation"},
    "logit distillation": {
        "representation.terms.distillation.kind": "logit_distillation",
        # Outputs of old tasks are kept and trained further, as in the published logit distillation.
        "representation.heads": "keep",
        "representation.train_old_heads": True,
    },
    "projected distillation": {},
}
DISTILLED = tuple(Row(label, settings=settings) for label, settings in DISTILLATIONS.items())
"""AdaGauss with another distillation."""
DISTILLED_COLLAPSING = tuple(
    Row(label, settings={**settings, **NO_ANTI_COLLAPSE}) for label, settings in DISTILLATIONS.items()
)
"""Distillation alone, without anti-collapse: the setting of the paper's analysis before it proposes that loss."""


def _baselines(*titles: str) -> tuple[Row, ...]:
    return tuple(BASELINES[title] for title in titles)


# Tables.
SCRATCH = ("EWC", "LwF", "PASS", "IL2A", "SSRE", "FeTrIL", "FeCAM", "DS-AL", "EFC")
FINE_GRAINED = tuple(title for title in SCRATCH if title != "SSRE")
BEST_LAST = "AdaGauss has the highest accuracy after the last task of all methods."

TABLE1 = Item(
    "table1",
    "From scratch, equal tasks",
    "main table, and its version with deviations",
    (*_baselines(*SCRATCH), ADAGAUSS),
    {
        "paper": tuple(Benchmark(f"{data}-{t}") for data in ("cifar100", "tiny", "imagenet-subset") for t in (10, 20)),
        "cpu": (
            Benchmark("cifar100-10"),
            Benchmark("tiny-10", 1, ("LwF", "FeTrIL", "FeCAM", "DS-AL", "EFC", "AdaGauss")),
        ),
    },
    (
        _highest(BEST_LAST, "AdaGauss", *SCRATCH),
        _highest(
            "AdaGauss has the highest accuracy averaged over tasks of all methods.",
            "AdaGauss",
            *SCRATCH,
            quantity="a_inc",
        ),
    ),
    tables=("main_from_scratch_mean_std", "main_from_scratch_mean"),
    deviations={
        "cpu": "Without ImageNet-Subset, whose images need large networks, and without 20 tasks, which take twice as "
        "long; TinyImageNet with six methods and one seed."
    },
)
TABLE2 = Item(
    "table2",
    "Fine-grained datasets, pretrained network",
    "fine-grained table, and its version with deviations",
    (*_baselines(*FINE_GRAINED), ADAGAUSS),
    {"paper": tuple(Benchmark(f"{data}-{t}") for data in ("cub", "aircraft") for t in (5, 10, 20)), "cpu": ()},
    (_highest(BEST_LAST, "AdaGauss", *FINE_GRAINED),),
    tables=("finegrained_mean_std", "finegrained_mean"),
    deviations={
        "cpu": "Not run: thirty images per class train a new bottleneck on a pretrained network too little. "
        "docs/reproduction.md has CUB-200 with 18 minutes per run, where AdaGauss is far below FeCAM."
    },
)
B50 = Item(
    "half",
    "B50: half of the classes first",
    "appendix, half dataset",
    (*_baselines("PASS", "SSRE", "FeTrIL", "FeCAM", "ACIL", "DS-AL"), ADAGAUSS),
    {
        "paper": tuple(Benchmark(f"{data}-half-{t}") for data in ("cifar100", "imagenet-subset") for t in (5, 10)),
        "cpu": (Benchmark("cifar100-half-5", 1),),
    },
    (
        _highest(
            "With half of the classes first, DS-AL on frozen features is better than AdaGauss.", "DS-AL", "AdaGauss"
        ),
        _highest("AdaGauss is better than PASS and SSRE.", "AdaGauss", "PASS", "SSRE"),
    ),
    tables=("half_dataset",),
    deviations={"cpu": "Only CIFAR-100 (B50, 5 tasks), one seed."},
)
BACKBONES: Mapping[str, tuple[str, Settings]] = {
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
CPU_BACKBONES: Mapping[str, Settings] = {
    "protocol's network": {},
    "at a quarter of the resolution": {"backbone.stem": "large"},
    "ResNet-32, half resolution": {"backbone.name": "resnet32", "backbone.stem": "halved"},
}
OTHER_BACKBONES = Item(
    "backbones",
    "Other networks",
    "appendix, backbones",
    (
        *(Row(label, settings=settings, paper={"backbone": name}) for label, (name, settings) in BACKBONES.items()),
        *(Row(label, settings=settings) for label, settings in CPU_BACKBONES.items()),
    ),
    {
        "paper": tuple(
            Benchmark(f"{data}-{t}", None, tuple(BACKBONES)) for data in ("cub", "aircraft") for t in (10, 20)
        ),
        "cpu": (Benchmark("cifar100-10", 1, tuple(CPU_BACKBONES)),),
    },
    (
        _highest("ConvNeXt-S is better than ResNet-18.", "ConvNeXt-S", "ResNet-18"),
        _highest("ViT-S is better than ResNet-18.", "ViT-S", "ResNet-18"),
        _highest(
            "A stronger network makes AdaGauss better (here: trained from scratch).",
            "ResNet-32, half resolution",
            "at a quarter of the resolution",
        ),
    ),
    tables=("backbones",),
    deviations={
        "cpu": "ConvNeXt-S and ViT-S are too large for two cores: three small networks from scratch replace them, with "
        "one seed. The protocol's network works at half the resolution of the images."
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
        "paper": tuple(map(Benchmark, ("cifar100-10", "imagenet-subset-10", "cub-10"))),
        "cpu": (Benchmark("cifar100-10"),),
    },
    (_decreasing("Normal batch norm is best, frozen second, none last.", *reversed(NORMS)),),
    tables=("batch_norm",),
    deviations={"cpu": "Without CUB-200: a pretrained network without its batch norms is random again."},
)


def _ablation(
    classifier: str, covariance: str, mean: bool, adapted: bool, anti_collapse: bool, shrink: bool
) -> Settings:
    """Columns that identify a row in the paper's ablation table."""
    return {
        "classifier": classifier,
        "cov_matrix": covariance,
        "adapt_mean": mean,
        "adapt_cov": adapted,
        "l_ac": anti_collapse,
        "shrink_0_5_instead_of_l_ac": shrink,
    }


NEAREST = {"classifier.kind": "nearest_mean"}
SHRINKAGE = {"memory.shrinkage": 0.5}
ABLATION_ROWS = {
    "1": Row(
        "1 nearest mean, mapped means",
        rescore={**NEAREST, "memory.kind": "means"},
        paper=_ablation("NMC", "None", True, True, True, False),
    ),
    "2": Row(
        "2 nearest mean, mapped samples", rescore=NEAREST, paper=_ablation("NMC", "Full", True, True, True, False)
    ),
    "3": Row(
        "3 Bayes, diagonal covariances",
        rescore={"memory.covariance": "diagonal"},
        paper=_ablation("Bayes", "Diagonal", True, True, True, False),
    ),
    "4": Row(
        "4 nothing adapted, no anti-collapse",
        settings=NO_ANTI_COLLAPSE,
        rescore={**SHRINKAGE, "drift.adapt_mean": False, "drift.adapt_covariance": False},
        paper=_ablation("Bayes", "Full", False, False, False, False),
    ),
    "5": Row(
        "5 only covariances adapted",
        rescore={"drift.adapt_mean": False},
        paper=_ablation("Bayes", "Full", False, True, True, False),
    ),
    "6": Row(
        "6 only means adapted",
        rescore={"drift.adapt_covariance": False},
        paper=_ablation("Bayes", "Full", True, False, True, False),
    ),
    "7": Row(
        "7 no anti-collapse, shrinkage 0.5",
        settings=NO_ANTI_COLLAPSE,
        rescore=SHRINKAGE,
        paper=_ablation("Bayes", "Full", True, True, False, True),
    ),
    "8": Row("8 AdaGauss", paper=_ablation("Bayes", "Full", True, True, True, False)),
}


def _ablated(numbers: str) -> tuple[str, ...]:
    return tuple(ABLATION_ROWS[number].label for number in numbers)


ABLATION = Item(
    "ablation",
    "Ablation: the parts of AdaGauss",
    "ablation table",
    tuple(ABLATION_ROWS.values()),
    {"paper": (Benchmark("cifar100-10"), Benchmark("imagenet-subset-10")), "cpu": (Benchmark("cifar100-10"),)},
    (
        _highest("All parts together are best.", *_ablated("81234567")),
        _decreasing("Full covariances are better than diagonal ones, and those than none.", *_ablated("832")),
        _decreasing("Adapting both beats means alone, and those covariances alone.", *_ablated("865")),
        _highest("Anti-collapse is better than shrinking covariances instead.", *_ablated("87")),
        Claim("Nothing adapted and no anti-collapse is worst.", "lowest", tuple(map(TableValue, _ablated("41235678")))),
    ),
    tables=("ablation",),
)
TIME = Item(
    "time",
    "Training and inference time",
    "time table",
    (*_baselines("LwF", "FeTrIL", "FeCAM", "SSRE", "EFC"), ADAGAUSS, LINEAR),
    CIFAR,
    (
        _highest("AdaGauss trains no longer than EFC.", "EFC", "AdaGauss", quantity="training_min"),
        _highest("SSRE trains longest.", "SSRE", "LwF", "FeTrIL", "FeCAM", "EFC", "AdaGauss", quantity="training_min"),
        _highest(
            "FeCAM, whose network is trained once, is much faster to train.",
            "AdaGauss",
            "FeCAM",
            quantity="training_min",
        ),
    ),
    tables=("time_complexity",),
    times=True,
    deviations={
        "cpu": "Wall clock of one thread, possibly on a shared machine: read the times as orders of magnitude."
    },
)

# Figures on the task-recency bias and the collapse of covariances.
PROJECTED = "projected distillation"
STRENGTH = Item(
    "strength",
    "Representation strength by distillation",
    "Fig. 2",
    DISTILLED_COLLAPSING,
    SUBSET,
    (
        _larger(
            "After the last task, projected distillation has spread the features over more directions than the others.",
            *(
                FigureValue(
                    label,
                    {"group": label, "quantity": "directions below 95 % of the variance, all seen tasks"},
                    "last",
                )
                for label in sorted(DISTILLATIONS, key=lambda label: label != PROJECTED)
            ),
        ),
    ),
    study="strength",
    deviations={"cpu": f"{OTHER_DATA['cpu']} {OTHER_WEIGHTS}"},
    alias="fig2",
)
LOGIT = Row("logit distillation", settings={**DISTILLATIONS["logit distillation"], **NO_ANTI_COLLAPSE})
WIDE = Row("logit distillation, 512 features", settings={**LOGIT.settings, "backbone.features": 512})
BIASED = (LOGIT, WIDE, ADAGAUSS)
BIASED_BENCHMARKS: Mapping[Size, tuple[Benchmark, ...]] = {
    "paper": (Benchmark("imagenet-subset-10", only=(WIDE.label,)),),
    "cpu": (Benchmark("cifar100-10", only=(LOGIT.label, ADAGAUSS.label)),),
}
BIASED_DEVIATIONS: Mapping[Size, str] = {
    "cpu": f"{OTHER_DATA['cpu']} The protocol's number of features is used, not 512."
}


def _over_tasks(text: str, quantity: str, name: str, larger: Literal["first", "last"]) -> tuple[Claim, ...]:
    """A quantity is larger in the first (or last) task than at the other end, checked on each row that a scale has."""
    ends: tuple[Summary, Summary] = ("first", "last") if larger == "first" else ("last", "first")
    return tuple(
        _larger(
            text,
            *(FigureValue(f"{end} task's {name}", {"group": row.label, "quantity": quantity}, end) for end in ends),
        )
        for row in (LOGIT, WIDE)
    )


PAPER_RANK = "rank, λ > 0.01"
RANKS = Item(
    "ranks",
    "Rank and inverse norm of covariances by task",
    "Fig. 3",
    BIASED,
    BIASED_BENCHMARKS,
    (
        *_over_tasks(
            "Covariances of early tasks have lower ranks than those of late ones.", PAPER_RANK, "rank", "last"
        ),
        *_over_tasks("Inverse covariances of early tasks are larger.", "‖Σ⁻¹‖_F", "‖Σ⁻¹‖", "first"),
    ),
    study="ranks",
    deviations=BIASED_DEVIATIONS,
    alias="fig3",
)
MAHALANOBIS = Item(
    "mahalanobis",
    "Mahalanobis distance and logit by task",
    "figure on the task-recency bias",
    BIASED,
    BIASED_BENCHMARKS,
    (
        *_over_tasks("Classes of early tasks have larger distances.", "published", "distance", "first"),
        *_over_tasks("Classes of early tasks get smaller logits.", "logit", "logit", "last"),
    ),
    study="mahalanobis",
    deviations=BIASED_DEVIATIONS,
)
SPECTRUM = Item(
    "spectrum",
    "Eigenvalues with and without anti-collapse",
    "figure on the eigenvalue spectrum",
    (ADAGAUSS, COLLAPSING),
    SUBSET,
    (
        _larger(
            "Without anti-collapse, the largest eigenvalue is a larger multiple of the smallest (paper: about 120,000, "
            "and 84 with it).",
            *(
                FigureValue(row.label, {"group": row.label, "quantity": "largest / smallest"})
                for row in (COLLAPSING, ADAGAUSS)
            ),
        ),
    ),
    study="spectrum",
    deviations=OTHER_DATA,
)
FULL_RANK = {"group": "projected KD + L_AC", "quantity": PAPER_RANK}
RANKS_BY_DISTILLATION = Item(
    "ranks-by-distillation",
    "Ranks of covariances by distillation",
    "figure on ranks per distillation",
    (*DISTILLED_COLLAPSING, Row("projected distillation + anti-collapse")),
    SUBSET,
    (
        Claim(
            "Projected distillation with anti-collapse keeps full rank in every task.",
            "at least",
            (FigureValue("lowest rank of a task", FULL_RANK, "min"),),
            "features",
        ),
        _larger(
            "Its ranks in the first task are higher than with any other distillation.",
            *(
                FigureValue(name, {"group": name, "quantity": PAPER_RANK}, "first")
                for name in ("projected KD + L_AC", "no KD", "feature KD", "logit KD", "projected KD")
            ),
        ),
    ),
    study="ranks-by-distillation",
    deviations={"cpu": f"{OTHER_DATA['cpu']} {OTHER_WEIGHTS}"},
)

# Figures on the adaptation of the Gaussians.
FROZEN, NOT_ADAPTED, ADAPTED = "frozen after task 1", "trained, not adapted", "trained, adapted"


def _cases(text: str, larger: str, smaller: str, quantity: str = "A_last, %") -> Claim:
    values = (FigureValue(case, {"case": case, "quantity": quantity}) for case in (larger, smaller))
    return _larger(text, *values)


MOTIVATION = Item(
    "motivation",
    "Why Gaussians must follow the network",
    "Fig. 1",
    (ADAGAUSS,),
    SUBSET,
    (
        _cases("Adapted Gaussians are more accurate than those that are not.", ADAPTED, NOT_ADAPTED),
        _cases(
            "A network that keeps learning, with adapted Gaussians, is more accurate than a frozen one.",
            ADAPTED,
            FROZEN,
        ),
        _cases(
            "Without adaptation, memorised Gaussians are farther from the real ones (symmetric KL).",
            NOT_ADAPTED,
            ADAPTED,
            "symmetric KL",
        ),
    ),
    study="motivation",
    deviations=OTHER_DATA,
    alias="fig1",
)
DISTANCES = Item(
    "distances",
    "Distance of memorised to real statistics",
    "figure on adaptation, and its appendix for CUB-200",
    (ADAGAUSS,),
    {"paper": (Benchmark("imagenet-subset-10"), Benchmark("cub-10")), "cpu": (Benchmark("cifar100-10"),)},
    tuple(
        _larger(
            f"Adapted {name} are nearer to the real ones than after EFC's update of the means (paper: by {by}).",
            FigureValue("distance with EFC's update", {"memory": "EFC's update", "quantity": quantity}),
            FigureValue("adapted", {"memory": "as run", "quantity": quantity}),
            relative=True,
        )
        for quantity, name, by in (
            ("mean", "means", "29 %"),
            ("covariance", "covariances", "39 %"),
            ("kl", "Gaussians (symmetric KL)", "72 %"),
        )
    ),
    study="distances",
    deviations=OTHER_DATA,
)
SHIFT = Item(
    "shift",
    "Predicted shift of every class in every task",
    "appendix, figure on shifts",
    (ADAGAUSS,),
    CIFAR,
    (
        Claim(
            "Shifts differ between classes (here: in task 2 the class that moves most moves at least twice as far as "
            "the one that moves least).",
            "at least",
            (FigureValue("largest over smallest shift", {"task": "2"}, "max/min", "shift"),),
            2.0,
        ),
    ),
    study="shift",
)

# Figures that compare settings.
SHRINKAGES = ("0", "0.02", "0.05", "0.1", "0.2", "0.5", "1")
"""Amounts in the figure."""


def _shrunk(row: Row, amount: str) -> FigureValue:
    return FigureValue(f"{row.label}, γ = {amount}", {"group": row.label, "γ": amount, "quantity": "A_inc"})


SHRINK = Item(
    "shrink",
    "Shrinkage of stored covariances",
    "figure on shrinkage",
    (ADAGAUSS, COLLAPSING),
    CIFAR,
    (
        _larger(
            "Anti-collapse without shrinkage has a higher A_inc than any shrinkage (paper: 60.2).",
            *(_shrunk(ADAGAUSS, amount) for amount in SHRINKAGES),
            *(_shrunk(COLLAPSING, amount) for amount in SHRINKAGES),
        ),
        _larger("With anti-collapse, strong shrinkage is harmful.", _shrunk(ADAGAUSS, "0"), _shrunk(ADAGAUSS, "1")),
    ),
    study="shrink",
)
DISTILLATION = Item(
    "distillation",
    "Accuracy by distillation",
    "figure on distillation",
    DISTILLED,
    {
        "paper": tuple(map(Benchmark, ("cifar100-10", "imagenet-subset-10", "cub-10"))),
        "cpu": (Benchmark("cifar100-10"),),
    },
    (
        _highest(
            "Projected distillation is better than logit distillation (paper: by 1.4 on CIFAR-100, 0.9 on "
            "ImageNet-Subset, 4.0 on CUB-200).",
            PROJECTED,
            "logit distillation",
        ),
        _highest(
            "Projected distillation is better than feature distillation and none.",
            PROJECTED,
            "feature distillation",
            "no distillation",
        ),
    ),
    study="distillation",
    deviations={"cpu": f"Only CIFAR-100. {OTHER_WEIGHTS}"},
)
BETAS = (1, 0.1, 10, 100)
BETA_KEYS = ("representation.terms.anti_collapse.beta", "drift.beta")
BETA = Item(
    "beta",
    "β of the anti-collapse loss",
    "appendix, figure on β",
    tuple(
        Row(f"β = {beta}", settings={} if beta == 1 else dict.fromkeys(BETA_KEYS, float(beta)))
        for beta in sorted(BETAS)
    ),
    SUBSET,
    tuple(
        _highest(f"β = 1 gives the highest accuracy {when}.", *(f"β = {beta}" for beta in BETAS), quantity=quantity)
        for when, quantity in (("after the last task", "a_last"), ("averaged over tasks", "a_inc"))
    ),
    study="beta",
    deviations=OTHER_DATA,
)

# Figures beyond the paper, from runs that its tables need too.
BEYOND = "beyond the paper"
ERRORS_ON_NEWEST = "share of errors that fall on the newest task"


def _beyond(study: str, title: str, rows: tuple[Row, ...], *claims: Claim) -> Item:
    return Item(study, title, BEYOND, rows, CIFAR, claims, study=study)


def _last(text: str, larger: str, smaller: str, value: str = "value", **columns: str) -> Claim:
    """A row has more of a quantity than another after the last task."""
    values = (FigureValue(label, {"group": label, **columns}, "last", value) for label in (larger, smaller))
    return _larger(text, *values)


BEYOND_PAPER = (
    _beyond(
        "recency",
        "Share of predictions by task",
        (*TABLE1.rows, COLLAPSING),
        _last(
            "LwF assigns more of its errors on old images to the newest task than AdaGauss does.",
            "LwF",
            "AdaGauss",
            quantity=ERRORS_ON_NEWEST,
        ),
        _last(
            "Without anti-collapse, more errors on old images are assigned to the newest task.",
            COLLAPSING.label,
            "AdaGauss",
            quantity=ERRORS_ON_NEWEST,
        ),
    ),
    _beyond("confusion", "Confusion by task", (ADAGAUSS,)),
    _beyond(
        "oracle",
        "Accuracy with real statistics",
        (ADAGAUSS, COLLAPSING),
        _larger(
            "Real means and covariances of old classes would make AdaGauss more accurate.",
            *(
                FigureValue(name, {"group": "AdaGauss", "memory": memory}, "last")
                for name, memory in (
                    ("accuracy with real statistics", "real means and covariances"),
                    ("as run", "as run"),
                )
            ),
        ),
    ),
    _beyond(
        "pareto",
        "Accuracy against time and memory",
        (*TABLE1.rows, LINEAR),
        _last(
            "FeCAM, whose features have no bottleneck, stores more than AdaGauss.",
            "FeCAM",
            "AdaGauss",
            value="stored beside the network, bytes",
        ),
    ),
)

TABLES = (TABLE1, TABLE2, B50, OTHER_BACKBONES, BATCH_NORM, ABLATION, TIME)
FIGURES = (STRENGTH, RANKS, MAHALANOBIS, SPECTRUM, RANKS_BY_DISTILLATION, MOTIVATION, DISTANCES, SHIFT)
SWEEPS = (SHRINK, DISTILLATION, BETA)
ITEMS = {item.name: item for item in (*TABLES, *FIGURES, *SWEEPS, *BEYOND_PAPER)}
ALL = "all"


def find_items(names: list[str]) -> list[Item]:
    """Items by name or figure number; ``all`` for every one.

    >>> [item.name for item in find_items(["fig3", "ranks", "ablation"])]
    ['ranks', 'ablation']
    """
    known = {**ITEMS, **{item.alias: item for item in ITEMS.values() if item.alias}}
    found: dict[str, Item] = {}
    for name in names:
        if name != ALL and name not in known:
            raise unknown_name("table or figure", name, [*known, ALL])
        for item in ITEMS.values() if name == ALL else [known[name]]:
            found[item.name] = item
    return list(found.values())
