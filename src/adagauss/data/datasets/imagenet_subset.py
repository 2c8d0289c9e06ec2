"""The two sets of 100 ImageNet classes that papers call ImageNet-Subset; only nine classes are in both."""

from __future__ import annotations

from adagauss.data.dataset import Dataset, ReadOptions, Trait, register_dataset
from adagauss.data.folders import file_dataset, files_of_classes

_FIRST_100 = """
    n01440764 n01443537 n01484850 n01491361 n01494475 n01496331 n01498041 n01514668 n01514859 n01518878
    n01530575 n01531178 n01532829 n01534433 n01537544 n01558993 n01560419 n01580077 n01582220 n01592084
    n01601694 n01608432 n01614925 n01616318 n01622779 n01629819 n01630670 n01631663 n01632458 n01632777
    n01641577 n01644373 n01644900 n01664065 n01665541 n01667114 n01667778 n01669191 n01675722 n01677366
    n01682714 n01685808 n01687978 n01688243 n01689811 n01692333 n01693334 n01694178 n01695060 n01697457
    n01698640 n01704323 n01728572 n01728920 n01729322 n01729977 n01734418 n01735189 n01737021 n01739381
    n01740131 n01742172 n01744401 n01748264 n01749939 n01751748 n01753488 n01755581 n01756291 n01768244
    n01770081 n01770393 n01773157 n01773549 n01773797 n01774384 n01774750 n01775062 n01776313 n01784675
    n01795545 n01796340 n01797886 n01798484 n01806143 n01806567 n01807496 n01817953 n01818515 n01819313
    n01820546 n01824575 n01828970 n01829413 n01833805 n01843065 n01843383 n01847000 n01855032 n01855672
"""
FIRST_100 = tuple(_FIRST_100.split())
"""The first hundred of the thousand wnids in alphabetical order."""

_SEED_1993 = """
    n01514668 n01531178 n01537544 n01689811 n01729322 n01744401 n01774384 n01775062 n01806567 n01882714
    n01914609 n01984695 n01990800 n02002556 n02011460 n02033041 n02088094 n02091467 n02094258 n02096177
    n02101388 n02102318 n02105056 n02107574 n02107908 n02112137 n02112706 n02115913 n02116738 n02120079
    n02123597 n02128385 n02128757 n02168699 n02229544 n02279972 n02280649 n02363005 n02526121 n02536864
    n02640242 n02669723 n02749479 n02786058 n02814860 n02840245 n02917067 n02948072 n02950826 n02951585
    n02971356 n03000247 n03016953 n03017168 n03075370 n03085013 n03089624 n03109150 n03141823 n03223299
    n03250847 n03290653 n03485407 n03527444 n03532672 n03657121 n03691459 n03697007 n03710193 n03759954
    n03775071 n03785016 n03884397 n03891332 n03942813 n03967562 n04026417 n04074963 n04152593 n04153751
    n04266014 n04355933 n04371430 n04399382 n04409515 n04428191 n04442312 n04525305 n04550184 n04591157
    n04599235 n04604644 n07614500 n07831146 n07892512 n09468604 n12267677 n12620546 n12768682 n15075141
"""
SEED_1993 = tuple(_SEED_1993.split())
"""The first hundred wnids of a permutation of the thousand with seed 1993, sorted."""


def _register(name: str, title: str, wnids: tuple[str, ...]) -> None:
    @register_dataset(
        name,
        title=title,
        classes=100,
        images="about 129,000 training, 5,000 test",
        licence="ImageNet terms of access: research and education, not commercial",
        folder="imagenet",
        manual="ImageNet (ILSVRC2012) is available at https://www.image-net.org after registration; sort its images "
        "into imagenet/train/<wnid>/ and imagenet/val/<wnid>/ below the data root.",
        markers=("train", "val"),
        traits=(Trait.PHOTOGRAPHS,),
    )
    def read(options: ReadOptions) -> Dataset:
        """Classes are wnids in alphabetical order; the official validation images serve as test images."""
        train, test = (files_of_classes([options.folder / part / wnid for wnid in wnids]) for part in ("train", "val"))
        return file_dataset(name, wnids, train, test, options, margin=True)


_register("imagenet-subset-first100", "ImageNet-Subset, the first 100 classes by wnid", FIRST_100)
_register("imagenet-subset-seed1993", "ImageNet-Subset, 100 classes drawn with seed 1993", SEED_1993)
