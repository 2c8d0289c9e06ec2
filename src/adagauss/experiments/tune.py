"""Search for settings with Optuna, scored on held-out training images of the first tasks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from adagauss.data.dataset import ReadOptions
from adagauss.errors import AdagaussError, CheckpointError, ConfigError, NumericalError
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.grid import Outcome, RunSpec, read_dataset, run_specs
from adagauss.experiments.protocols import Protocol
from adagauss.experiments.run import RunFolder
from adagauss.experiments.runner import ValidationSplit
from adagauss.utils.files import YamlError, parse_yaml
from adagauss.utils.progress import Reporter
from adagauss.utils.registry import import_extra
from adagauss.utils.runtime import RuntimeConfig, derive_seed

NUMBERS = re.compile(r"([^:,]+)\.\.([^:,]+)(:log)?")
JOURNAL = "study.journal"
NAME = "adagauss"
SEARCH = "search"
"""Attribute of a study: the search whose trials it holds."""


class Range(NamedTuple):
    """The values that one setting may take, as a distribution of Optuna."""

    key: str
    distribution: Any

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``key=low..high``, ``key=low..high:log`` or ``key=a,b,c``; two integers are a range of integers.

        >>> Range.parse("classifier.pooled_shrinkage=0..1.0").ends(), Range.parse("a=1e-4..0.1:log").distribution.log
        ([0.0, 1.0], True)
        >>> Range.parse("a=16..256").ends(), Range.parse("a=sgd,2,null").ends()
        ([16, 256], ['sgd', 2, None])
        """
        kinds = import_extra("optuna", "tune", "tune").distributions
        key, _, value = (part.strip() for part in text.partition("="))
        with suppress(YamlError, TypeError, ValueError):  # the error below names the forms
            if found := NUMBERS.fullmatch(value):
                low, high = (_number(found[end].strip()) for end in (1, 2))
                kind = kinds.IntDistribution if isinstance(low, int) and isinstance(high, int) else None
                if key and low < high < math.inf:
                    return cls(key, (kind or kinds.FloatDistribution)(low, high, log=bool(found[3])))
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


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


@dataclass(frozen=True)
class Search:
    """The search space: a method with fixed settings, ranges of others, and the validation split."""

    method: str
    ranges: tuple[Range, ...]
    split: ValidationSplit
    preset: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    protocol: Protocol | None = None
    runtime: RuntimeConfig | None = None

    def config(self, drawn: Mapping[str, Any]) -> RunConfig:
        """The configuration with these settings."""
        made = make_config(
            self.method,
            self.split.stream,
            preset=self.preset,
            settings={**self.settings, **drawn},
            epochs=self.epochs,
            seed=self.split.seed,
            runtime=self.runtime,
            protocol=self.protocol,
        )
        if self.protocol is not None:
            self.protocol.check_weights(made.method)
        return made

    def check(self) -> None:
        """Raise if a range names an unknown setting, or a value that it cannot take."""
        if not self.ranges:
            raise ConfigError("give at least one setting to search, e.g. --range classifier.pooled_shrinkage=0..1.0")
        keys = [*self.settings, *(one.key for one in self.ranges)]
        for one in self.ranges:
            if keys.count(one.key) > 1:
                raise ConfigError(f"{one.key} is given twice: give either one --range or one --set for it")
            for value in one.ends():
                self.config({one.key: value})

    def identity(self) -> str:
        """A text that two searches share only if their trials can be compared."""
        first = self.config({one.key: one.ends()[0] for one in self.ranges[:1]})
        split = (self.split.tasks, self.split.share, self.split.seed)
        return repr((sorted(map(repr, self.ranges)), split, first.digest()))


def tune(
    search: Search,
    out: Path,
    *,
    trials: int = 20,
    options: ReadOptions | None = None,
    reporter: Reporter | None = None,
    executor: Executor | None = None,
    most: int | None = None,
) -> list[Any]:
    """Try settings until there are ``trials`` of them in the study in ``out``; a search that was killed is resumed.

    Returns Optuna's trials, the best first. A trial fails if its settings are impossible or training diverges; those
    that end because of a machine stay unfinished, and go on when the search is resumed.
    """
    search.check()
    options, reporter = options or ReadOptions(), reporter or Reporter()
    search.split.of(search.config({}), read_dataset(search.split.stream, options))
    optuna = import_extra("optuna", "tune", "tune")
    states = optuna.trial.TrialState
    space = {one.key: one.distribution for one in search.ranges}
    failures: list[AdagaussError] = []
    faults: list[AdagaussError] = []

    def spec(trial: Any) -> Iterator[RunSpec]:
        name = f"trial-{trial.number:04d}"
        try:
            yield RunSpec(name, search.config(trial.params), out / name, split=search.split)
        except ConfigError as error:  # settings that are impossible together
            fail(trial.number, error)

    def specs(study: Any) -> Iterator[RunSpec]:
        """Unfinished trials, then new ones until a machine fails."""
        for unfinished in study.get_trials(states=(states.RUNNING,)):
            yield from spec(unfinished)
        while (number := len(study.get_trials(deepcopy=False))) < trials and not faults:
            # One seed for each trial, so that a resumed search does not draw the same values again.
            seed = derive_seed(search.split.seed, "trial", number) % 2**32
            study.sampler = optuna.samplers.TPESampler(seed=seed)
            yield from spec(study.ask(space))

    def fail(number: int, reason: AdagaussError) -> None:
        failures.append(reason)
        reporter.message(f"trial {number} failed: {reason}")
        study.tell(number, state=states.FAIL)

    def report(one: RunSpec, outcome: Outcome) -> None:
        number = int(one.folder.name.rpartition("-")[2])
        if outcome.result is not None:
            study.tell(number, outcome.result.curve[-1])
        elif isinstance(outcome.failure, ConfigError | NumericalError):
            fail(number, outcome.failure)
        elif outcome.failure is not None:  # the machine is gone or full, or has other data: the settings may be good
            faults.append(outcome.failure)
            reporter.message(f"trial {number} is unfinished: {outcome.failure}")

    with RunFolder(out).lock():
        study = _open_study(search, out)
        run_specs(
            specs(study),
            out,
            then=report,
            total=trials,
            executor=executor,
            most=most,
            options=options,
            reporter=reporter,
            title="search",
        )
        found = study.get_trials()
    if not any(one.state == states.COMPLETE for one in found):
        raise (faults or failures or [ConfigError("no trial is complete: give more with --trials")])[-1]
    order = (states.COMPLETE, states.RUNNING, states.FAIL)
    return sorted(found, key=lambda one: (order.index(one.state), -(one.value or 0.0), one.number))


def _open_study(search: Search, out: Path) -> Any:
    """The study in a folder, which Optuna stores in a journal file; refused if it is of another search."""
    optuna = import_extra("optuna", "tune", "tune")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        backend = optuna.storages.journal.JournalFileBackend(str(out / JOURNAL))
        storage = optuna.storages.JournalStorage(backend)
        study = optuna.create_study(storage=storage, study_name=NAME, direction="maximize", load_if_exists=True)
        before = study.user_attrs.get(SEARCH)
        if before is None and not study.get_trials(deepcopy=False):
            study.set_user_attr(SEARCH, before := search.identity())
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CheckpointError(f"{out / JOURNAL} cannot be read ({error}): delete it, or choose another --out") from None
    if before != search.identity():
        raise CheckpointError(
            f"{out} holds a search with other settings, ranges or validation images, and its "
            "trials do not compare with these: repeat that command to continue it, or choose another --out"
        )
    return study
