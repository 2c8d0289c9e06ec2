"""What is kept of old images: of a learner, to the byte; of every method, as the table in docs/privacy.md."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from adagauss.analytic.moments import FeatureSums
from adagauss.classifiers.analytic import RidgeStream
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learner_state import LearnerState
from adagauss.core.state import State
from adagauss.data.images import Label
from adagauss.methods import Method, methods

SIZES = {"c": "C", "s": "S", "e": "E", "w": "W", "q": "Q"}
"""Letters of `Learned.axes` as sizes in formulas: classes, features, expanded features, weights of the network, pairs
of classes that were taken for each other."""


@dataclass(frozen=True)
class Kept:
    """Something that is kept: where, how many bytes, and what it is, in words."""

    place: str
    size: int
    words: str


def kept(known: LearnerState) -> list[Kept]:
    """All that is kept beside the network, largest first."""
    found = [Kept("memory", _bytes(known.memory), known.memory.contents)] if len(known.memory) else []
    for place, state in known.states.items():
        for part in (module for module in state.modules() if isinstance(module, State)):
            found.append(Kept(place, _bytes(part), part.contents))
    return sorted((one for one in found if one.size), key=lambda one: -one.size)


def single_images(known: LearnerState) -> list[Label]:
    """Classes of one image, of which a mean or a sum is kept: it is the feature of that image.

    Images are counted as they were given: a mirror image that is learned beside an image does not hide it.
    """
    sums = (module for module in known.parts.modules() if isinstance(module, FeatureSums | RidgeStream))
    if not len(known.memory) and next(sums, None) is None:
        return []
    learned = known.evidence.learned.tolist()
    return [label for label, count in zip(known.classes, learned, strict=True) if count == 1]


def table() -> str:
    """A line for every registered method: bytes as a formula of sizes, and words."""
    lines = ["| method | kept beside the network, in bytes | in words |", "|---|---|---|"]
    for name, info in sorted(methods().items()):
        if info.joint:
            continue
        formulas, words = zip(*_rows(info.build()), strict=True)
        lines.append(f"| `{name}` | {' + '.join(one for one in formulas if one)} | {'; '.join(dict.fromkeys(words))} |")
    return "\n".join(lines) + "\n"


def _rows(method: Method) -> Iterator[tuple[str, str]]:
    bank = method.memory.empty(1)
    if method.memory.kind != "none":
        yield _of_memory(bank)
    for _, part in method.parts():
        state = part.empty_state()
        for module in state.modules() if state is not None else ():
            if isinstance(module, State) and module.axes:
                yield formula(module), module.contents


def _of_memory(bank: ClassGaussians) -> tuple[str, str]:
    if bank.covariance == "shared":
        return "8CS + 4S(S+1) + 8C", bank.contents
    matrix, kind = {
        "full": (" + 4CS(S+1)", "and the covariance "),
        "diagonal": (" + 8CS", "and the variances "),
        "low_rank": (f" + {8 + 8 * bank.rank}CS", "and the covariance (few factors and a diagonal) "),
        "none": ("", ""),
    }[bank.covariance]
    return f"8CS{matrix} + 8C", f"the number of images, the mean {kind}of each class"


def formula(state: State) -> str:
    """Bytes of a state, from its axes; buffers that do not grow with a size are left out.

    >>> import torch
    >>> from adagauss.parts.classifiers import LinearScorer
    >>> formula(LinearScorer(torch.zeros(0, 0), torch.zeros(0)))
    '4CS + 4C'
    """
    return " + ".join(f"{number}{sizes}" for sizes, number in _terms(state).items())


def _terms(state: State) -> dict[str, int]:
    """Bytes of a state by the product of sizes that they grow with."""
    terms: dict[str, int] = {}
    for name, letters in state.axes.items():
        buffer = state.get_buffer(name)
        if letters == "p":  # the upper half of an E × E matrix
            sizes, number = "E²", buffer.element_size() // 2
        else:
            growing = "".join(sorted(SIZES[letter] for letter in letters if letter in SIZES))
            fixed = [size for letter, size in zip(letters, buffer.shape, strict=True) if letter not in SIZES]
            sizes = growing.replace("SS", "S²").replace("EE", "E²").replace("CC", "C²")
            number = buffer.element_size() * math.prod(fixed)
        if sizes:
            terms[sizes] = terms.get(sizes, 0) + number
    return terms


def _bytes(state: State) -> int:
    """Bytes of the saved buffers of one state, without those of the states within."""
    return sum(state.get_buffer(name).numel() * state.get_buffer(name).element_size() for name in state.axes)
