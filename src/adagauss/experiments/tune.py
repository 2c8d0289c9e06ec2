"""Search for settings with Optuna, scored on held-out training images of the first tasks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self

from adagauss.core.config import plain
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
QUESTION, REASON = "question", "reason"
FREE_TRIALS = 5
"""Trials before any is stopped early: a median of fewer is unreliable."""
MOST_FAULTS = 8
"""Trials that may fail because of a machine before the search stops."""
COMPLETE, PRUNED, UNFINISHED, FAILED = "complete", "stopped early", "unfinished", "failed"


class Range(NamedTuple):
    """The values that one setting may take, as a distribution of Optuna; choices are JSON texts."""

    key: str
    distribution: Any

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``key=low..high``, ``key=low..high:log`` or ``key=a,b,c``; two integers are a range of integers.

        >>> Range.parse("classifier.pooled_shrinkage=0..1.0").ends(), Range.parse("a=1e-4..0.1:log").distribution.log
        ([0.0, 1.0], True)
        >>> Range.parse("a=16..256").ends(), Range.parse("a=sgd,[1, 2],null").ends()
        ([16, 256], ['sgd', [1, 2], None])
        """
        kinds = import_extra("optuna", "tune", "tune").distributions
        key, _, value = (part.strip() for part in text.partition("="))
        try:
            if found := NUMBERS.fullmatch(value):
                low, high = (_number(found[end].strip()) for end in (1, 2))
                kind = kinds.IntDistribution if isinstance(low, int) and isinstance(high, int) else None
                if key and low < high < math.inf:
                    return cls(key, (kind or kinds.FloatDistribution)(low, high, log=bool(found[3])))
            elif isinstance(read := parse_yaml(f"[{value}]"), list):
                choices = tuple(json.dumps(choice) for choice in read)
                if key and len(set(choices)) == len(choices) > 1:
                    return cls(key, kinds.CategoricalDistribution(choices))
        except (YamlError, TypeError, ValueError):  # the error below names the forms
            pass
        raise ConfigError(
            f"--range takes KEY=LOW..HIGH with LOW < HIGH, KEY=LOW..HIGH:log with 0 < LOW < HIGH, or different values "
            f"KEY=A,B,C, e.g. representation.later.learning_rate=0.001..0.1:log; got {text!r}"
        )

    def ends(self) -> list[Any]:
        """Values that must be valid if all are: the choices, or both ends."""
        one = self.distribution
        return [setting(choice) for choice in one.choices] if hasattr(one, "choices") else [one.low, one.high]


def setting(drawn: Any) -> Any:
    """The value of a setting for a drawn value, which is a JSON text if it is a choice."""
    return json.loads(drawn) if isinstance(drawn, str) else drawn


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

    def question(self) -> dict[str, Any]:
        """Plain data that two searches share only if their trials can be compared."""
        first = self.config({one.key: one.ends()[0] for one in self.ranges[:1]})
        ranges = [[one.key, repr(one.distribution)] for one in self.ranges]
        split = [self.split.tasks, self.split.share, self.split.seed]
        found = {"ranges": ranges, "validation": split, "config": plain(first)}
        return dict(json.loads(json.dumps(found)))


@dataclass(frozen=True)
class Trial:
    """One trial."""

    number: int
    state: str
    settings: Mapping[str, Any]
    accuracy: float | None
    """On held-out training images after the last finished task."""
    reason: str = ""


def tune(
    search: Search,
    out: Path,
    *,
    trials: int = 20,
    prune: bool = True,
    options: ReadOptions | None = None,
    reporter: Reporter | None = None,
    executor: Executor | None = None,
    most: int | None = None,
) -> list[Trial]:
    """Try settings until there are ``trials`` of them in the study in ``out``; a search that was killed is resumed.

    Returns the trials, the best first. With ``prune``, a trial is stopped after a task if its accuracy is below the
    median of the earlier trials.
    """
    search.check()
    options = options or ReadOptions()
    search.split.of(search.config({}), read_dataset(search.split.stream, options))
    with RunFolder(out).lock():
        study = _Study(search, out, prune)
        run_specs(
            study.specs(trials),
            out,
            then=study.report,
            total=trials,
            executor=executor,
            most=most,
            options=options,
            reporter=reporter,
            title="search",
        )
        return study.outcome()


class _Study:
    """The trials of a search, which Optuna stores in a journal file."""

    def __init__(self, search: Search, out: Path, prune: bool) -> None:
        self._optuna = optuna = import_extra("optuna", "tune", "tune")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._search, self._out, self._prune = search, out, prune
        self._state = optuna.trial.TrialState
        self._failure: AdagaussError | None = None
        self._faults: dict[int, AdagaussError] = {}
        """Failures of machines; these trials go on when the search is resumed."""
        question = search.question()
        try:
            backend = optuna.storages.journal.JournalFileBackend(str(out / JOURNAL))
            storage = optuna.storages.JournalStorage(backend)
            self._study = optuna.create_study(
                storage=storage, study_name=NAME, direction="maximize", load_if_exists=True
            )
            before = self._study.user_attrs.get(QUESTION)
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise CheckpointError(
                f"{out / JOURNAL} cannot be read ({error}): delete it, or choose another --out"
            ) from None
        if before is None:
            self._study.set_user_attr(QUESTION, question)
        elif before != question:
            raise CheckpointError(
                f"{out} holds a search with other settings, ranges or validation images, and its "
                "trials do not compare with these: repeat that command to continue it, or choose another --out"
            )

    def specs(self, trials: int) -> Iterator[RunSpec]:
        """Unfinished trials, then new ones; each spec is one task of a trial."""
        space = {one.key: one.distribution for one in self._search.ranges}
        for unfinished in self._study.get_trials(states=(self._state.RUNNING,)):
            yield from self._spec(self._trial(unfinished.number))
        while (number := len(self._study.get_trials(deepcopy=False))) < trials and len(self._faults) < MOST_FAULTS:
            # One seed for each trial, so that a resumed search does not draw the same values again.
            seed = derive_seed(self._search.split.seed, "trial", number) % 2**32
            self._study.sampler = self._optuna.samplers.TPESampler(seed=seed)
            yield from self._spec(self._study.ask(space))

    def _spec(self, trial: Any) -> Iterator[RunSpec]:
        """The next task of a trial, unless its settings are invalid together."""
        done = len(self._study.get_trials(deepcopy=False)[trial.number].intermediate_values)
        try:
            config = self._search.config({key: setting(drawn) for key, drawn in trial.params.items()})
        except ConfigError as error:
            self._fail(trial.number, error)
            return
        folder = self._out / f"trial-{trial.number:04d}"
        yield RunSpec(f"trial {trial.number}", config, folder, split=self._search.split, until=done + 1)

    def report(self, spec: RunSpec, outcome: Outcome) -> RunSpec | None:
        """Report the accuracy after a task to Optuna; returns the next task of the trial, if there is one."""
        number = int(spec.folder.name.rpartition("-")[2])
        if isinstance(outcome.failure, ConfigError | NumericalError):
            self._fail(number, outcome.failure)
        elif outcome.failure is not None:  # a machine that is gone, full or has other data: the settings may be good
            self._failure = self._faults[number] = outcome.failure
        if outcome.result is None:
            return None
        accuracy, task = outcome.result.curve[-1], spec.until or 0
        self._trial(number).report(accuracy, task)
        if task >= self._search.split.tasks:
            self._study.tell(number, accuracy)
        elif self._prune and self._below_median(accuracy, task):
            self._study.tell(number, state=self._state.PRUNED)
        else:
            return replace(spec, until=task + 1)
        return None

    def _below_median(self, accuracy: float, task: int) -> bool:
        """Whether an accuracy is below the median of the finished trials after as many tasks.

        Optuna's MedianPruner takes the best accuracy after any task so far, which usually is that of the first task.
        """
        finished = self._study.get_trials(deepcopy=False, states=(self._state.COMPLETE,))
        others = [one.intermediate_values[task] for one in finished]
        return len(others) >= FREE_TRIALS and accuracy < median(others)

    def _fail(self, number: int, reason: AdagaussError) -> None:
        self._failure = reason
        self._trial(number).set_user_attr(REASON, str(reason))
        self._study.tell(number, state=self._state.FAIL)

    def _trial(self, number: int) -> Any:
        return self._optuna.trial.Trial(self._study, self._study.get_trials(deepcopy=False)[number]._trial_id)

    def outcome(self) -> list[Trial]:
        """All trials: complete ones first, the best first."""
        names = {self._state.COMPLETE: COMPLETE, self._state.PRUNED: PRUNED, self._state.RUNNING: UNFINISHED}
        order = (COMPLETE, PRUNED, UNFINISHED, FAILED)
        found = []
        for one in self._study.get_trials():
            values = list(one.intermediate_values.values())
            reason = str(self._faults.get(one.number, "")) or one.user_attrs.get(REASON, "")
            settings = {key: setting(drawn) for key, drawn in one.params.items()}
            found.append(
                Trial(one.number, names.get(one.state, FAILED), settings, values[-1] if values else None, reason)
            )
        found.sort(key=lambda one: (order.index(one.state), -(one.accuracy or 0.0), one.number))
        if not found or found[0].state != COMPLETE:
            raise self._failure or ConfigError("no trial is complete: give more with --trials")
        return found
