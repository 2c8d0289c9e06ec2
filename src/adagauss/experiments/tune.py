"""Search for settings with Optuna, scored on held-out training images of the first tasks."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from adagauss.core.config import Layer, import_parts, resolve
from adagauss.errors import AdagaussError, CheckpointError, ConfigError, NumericalError
from adagauss.experiments.config import RunConfig
from adagauss.experiments.grid import RunSpec, Workers, read_dataset, run_specs
from adagauss.experiments.run import RunFolder
from adagauss.experiments.runner import ValidationSplit
from adagauss.methods.base import USER
from adagauss.utils.files import YamlError, parse_yaml
from adagauss.utils.registry import import_extra
from adagauss.utils.runtime import derive_seed

NUMBERS = re.compile(r"([^:,]+)\.\.([^:,]+)(:log)?")
JOURNAL = "study.journal"


class Range(NamedTuple):
    """The values that one setting may take, as a distribution of Optuna."""

    key: str
    distribution: Any

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``key=low..high``, ``key=low..high:log`` or ``key=a,b,c``; two integers are a range of integers.

        >>> Range.parse("classifier.pooled_shrinkage=0..1.0").ends(), Range.parse("a=1e-4..0.1:log").distribution.log
        ([0.0, 1.0], True)
        >>> [Range.parse(f"a={values}").ends() for values in ("16..256", "-1..0.5", "sgd,1.5,null")]
        [[16, 256], [-1.0, 0.5], ['sgd', 1.5, None]]
        """
        kinds = import_extra("optuna", "tune", "tune").distributions
        key, _, value = (part.strip() for part in text.partition("="))
        with suppress(YamlError, TypeError, ValueError):  # the error below names the forms
            if found := NUMBERS.fullmatch(value):
                whole = all(re.fullmatch(r"\s*[+-]?\d+\s*", end) for end in found.groups()[:2])
                low, high = (int(end) if whole else float(end) for end in found.groups()[:2])
                kind = kinds.IntDistribution if whole else kinds.FloatDistribution
                if key and low < high < math.inf:
                    return cls(key, kind(low, high, log=bool(found[3])))
            elif isinstance(choices := parse_yaml(f"[{value}]"), list) and key and len(set(choices)) > 1:
                return cls(key, kinds.CategoricalDistribution(choices))
        raise ConfigError(
            f"--range takes KEY=LOW..HIGH with LOW < HIGH, KEY=LOW..HIGH:log with 0 < LOW < HIGH, or different values "
            f"KEY=A,B,C, e.g. representation.later.learning_rate=0.001..0.1:log; got {text!r}"
        )

    def ends(self) -> list[Any]:
        """Values that must be valid if all are: the choices, or both ends."""
        one = self.distribution
        return list(one.choices) if hasattr(one, "choices") else [one.low, one.high]


@dataclass(frozen=True)
class Search:
    """The search space: a configuration, ranges of some of its settings, and the validation split."""

    base: RunConfig
    ranges: tuple[Range, ...]
    split: ValidationSplit

    def config(self, drawn: Mapping[str, Any]) -> RunConfig:
        """The configuration with these settings."""
        import_parts(drawn)
        method = resolve(self.base.method, [Layer("search", drawn)], "search").config
        return self.base.model_copy(update={"method": method})

    def check(self) -> None:
        """Raise if a range names an unknown setting, or a value that it cannot take."""
        if not self.ranges:
            raise ConfigError("give at least one setting to search, e.g. --range classifier.pooled_shrinkage=0..1.0")
        keys = [one.key for one in self.ranges]
        for one in self.ranges:
            if keys.count(one.key) > 1 or self.base.origins.get(one.key) == USER:
                raise ConfigError(f"{one.key} is given twice: give either one --range or one --set for it")
            for value in one.ends():
                self.config({one.key: value})

    def name(self) -> str:
        """A name that two searches share only if their trials can be compared."""
        facts = sorted(map(repr, self.ranges)), self.split, self.base.digest(), self.base.seed
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:10]


def tune(search: Search, out: Path, *, trials: int = 20, workers: Workers | None = None) -> list[Any]:
    """Try settings until the study of the search has ``trials`` of them; a search that was killed is resumed.

    The folder ``out`` holds Optuna's journal of all its studies, and a folder of trials for each. Returns Optuna's
    trials, the best first. A trial fails if its settings are impossible or training diverges; those that end because of
    a machine stay unfinished, and go on when the search is resumed.
    """
    search.check()
    search.base.check_inputs()
    workers = workers or Workers()
    search.split.of(search.base, read_dataset(search.base.stream, workers.options))
    optuna = import_extra("optuna", "tune", "tune")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    states = optuna.trial.TrialState
    space = {one.key: one.distribution for one in search.ranges}
    ended: list[AdagaussError] = []
    """Why trials failed."""
    faults: list[AdagaussError] = []
    """Why trials could not be finished here."""

    def fail(number: int, reason: AdagaussError) -> None:
        ended.append(reason)
        workers.reporter.message(f"trial {number} failed: {reason}")
        study.tell(number, state=states.FAIL)

    def trials_to_run() -> Iterator[Any]:
        """Unfinished trials, then new ones until a machine fails."""
        yield from study.get_trials(states=(states.RUNNING,))
        while (number := len(study.get_trials(deepcopy=False))) < trials and not faults:
            # One seed for each trial, so that a resumed search does not draw the same values again.
            study.sampler = optuna.samplers.TPESampler(seed=derive_seed(search.base.seed, "trial", number) % 2**32)
            yield study.ask(space)

    def specs() -> Iterator[RunSpec]:
        for trial in trials_to_run():
            folder = out / study.study_name / f"{trial.number:04d}"
            try:
                yield RunSpec(f"trial {trial.number}", search.config(trial.params), folder, split=search.split)
            except ConfigError as error:  # settings that are impossible together
                fail(trial.number, error)

    with RunFolder(out).lock():
        study = _open_study(optuna, search.name(), out / JOURNAL)
        for one, outcome in run_specs(specs(), out, workers, total=trials, title="search"):
            number = int(one.folder.name)
            if outcome.result is not None:
                study.tell(number, outcome.result.curve[-1])
            elif isinstance(outcome.failure, ConfigError | NumericalError):
                fail(number, outcome.failure)
            elif outcome.failure is not None:  # the machine is full, or has other data: the settings may be good
                faults.append(outcome.failure)
                workers.reporter.message(f"trial {number} is unfinished: {outcome.failure}")
        found = study.get_trials()
    if not any(one.state == states.COMPLETE for one in found):
        raise (faults or ended or [ConfigError("no trial is complete: give more with --trials")])[-1]
    order = (states.COMPLETE, states.RUNNING, states.FAIL)
    return sorted(found, key=lambda one: (order.index(one.state), -(one.value or 0.0), one.number))


def _open_study(optuna: Any, name: str, journal: Path) -> Any:
    """The study of a search, which Optuna stores in a journal file."""
    try:
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
        return optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CheckpointError(f"{journal} cannot be read ({error}): delete it, or choose another --out") from None
