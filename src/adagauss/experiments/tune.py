"""Search for settings with Optuna, scored on held-out training images of the first tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from adagauss.core.config import plain
from adagauss.data.dataset import Dataset, ReadOptions
from adagauss.errors import AdagaussError, CheckpointError, ConfigError, NumericalError
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.grid import Outcome, RunSpec, run_specs
from adagauss.experiments.protocols import Protocol
from adagauss.experiments.run import RunFolder
from adagauss.experiments.runner import ValidationSplit
from adagauss.utils.files import YamlError, parse_yaml
from adagauss.utils.progress import Reporter
from adagauss.utils.registry import import_extra
from adagauss.utils.runtime import RuntimeConfig, derive_seed

NUMBERS = re.compile(r"(?P<low>[^:,]+?)\.\.(?P<high>[^:,]+?)(?P<log>:log)?$")


@dataclass(frozen=True)
class Range:
    """The values that one setting may take."""

    key: str
    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    choices: tuple[str, ...] = ()
    """As JSON, so that lists and None can be chosen from too; empty if it is a range of numbers."""

    @classmethod
    def parse(cls, text: str) -> Range:
        """From ``key=low..high``, ``key=low..high:log`` or ``key=a,b,c``; two whole numbers are a range of such.

        >>> Range.parse("classifier.pooled_shrinkage=0..1.0").high, Range.parse("a=1e-4..0.1:log").log
        (1.0, True)
        >>> Range.parse("a=16..256").low, Range.parse("a=sgd,[1, 2],null").choices
        (16, ('"sgd"', '[1, 2]', 'null'))
        """
        key, sign, value = (part.strip() for part in text.partition("="))
        if not key or not sign or not value:
            raise _wrong(text)
        if found := NUMBERS.match(value):
            return cls._of_numbers(key, found, text)
        if ".." in value and "," not in value:
            raise _wrong(text)
        try:
            choices = parse_yaml(f"[{value}]")
            if not isinstance(choices, list) or len(choices) < 2:
                raise ConfigError(f"--range {text}: one value is not a range; give LOW..HIGH or A,B,C, or use --set")
            written = tuple(json.dumps(choice) for choice in choices)
        except (YamlError, TypeError) as error:
            raise _wrong(text) from error
        if len(set(written)) < len(written):
            raise ConfigError(f"--range {text} names a value twice")
        return cls(key, choices=written)

    @classmethod
    def _of_numbers(cls, key: str, found: re.Match[str], text: str) -> Range:
        try:
            low, high = (_number(found[end].strip()) for end in ("low", "high"))
        except ValueError:
            raise _wrong(text) from None
        if isinstance(low, float) or isinstance(high, float):
            low, high = float(low), float(high)
        if not low < high:
            raise ConfigError(f"--range {text}: the lower end comes first, and lies below the upper one")
        if found["log"] and low <= 0:
            raise ConfigError(f"--range {text}: a logarithmic scale has only numbers above 0")
        return cls(key, low, high, bool(found["log"]))

    def distribution(self) -> Any:
        """As Optuna has it."""
        distributions = import_extra("optuna", "tune", "tune").distributions
        if self.choices:
            return distributions.CategoricalDistribution(self.choices)
        kind = distributions.IntDistribution if isinstance(self.low, int) else distributions.FloatDistribution
        return kind(self.low, self.high, log=self.log)

    def setting(self, drawn: Any) -> Any:
        """The value of the setting that a draw stands for."""
        return json.loads(drawn) if self.choices else drawn

    def ends(self) -> list[Any]:
        """Values that must be possible if all are: the choices, or both ends."""
        return [json.loads(choice) for choice in self.choices] or [self.low, self.high]

    def __str__(self) -> str:
        values = ",".join(self.choices) or f"{self.low}..{self.high}" + ":log" * self.log
        return f"{self.key}={values}"


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else _finite(float(text))


def _finite(value: float) -> float:
    if abs(value) == float("inf") or value != value:
        raise ValueError
    return value


def _wrong(text: str) -> ConfigError:
    return ConfigError(
        f"--range takes KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=A,B,C, e.g. "
        f"representation.later.learning_rate=0.001..0.1:log; got {text!r}"
    )


JOURNAL = "study.journal"
NAME = "adagauss"
QUESTION, REASON = "question", "reason"
FREE_TRIALS = 5
"""Trials before any is stopped early: a median of fewer says little."""
MOST_FAULTS = 8
"""Trials that may fail because of a machine before the search stops."""
COMPLETE, PRUNED, UNFINISHED, FAILED = "complete", "stopped early", "unfinished", "failed"


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
            diagnostics="none",
            protocol=self.protocol,
        )
        if self.protocol is not None:
            self.protocol.check_weights(made.method)
        return made

    def check(self) -> None:
        """Raise if a range names an unknown setting, or a value that it cannot take."""
        if not self.ranges:
            raise ConfigError("give at least one setting to search, e.g. --range classifier.pooled_shrinkage=0..1.0")
        for one in self.ranges:
            if sum(other.key == one.key for other in self.ranges) > 1 or one.key in self.settings:
                raise ConfigError(f"{one.key} is given twice: give either one --range or one --set for it")
            for value in one.ends():
                self.config({one.key: value})

    def question(self) -> dict[str, Any]:
        """Plain data that two searches share only if their trials can be compared."""
        first = self.config({one.key: one.ends()[0] for one in self.ranges[:1]})
        held_out = [self.split.tasks, self.split.share, self.split.seed]
        found = {"ranges": [str(one) for one in self.ranges], "judged": held_out, "config": plain(first)}
        return dict(json.loads(json.dumps(found)))


@dataclass(frozen=True)
class Tried:
    """One trial."""

    number: int
    state: str
    settings: Mapping[str, Any]
    accuracy: float | None
    """On held-out training images after the last of the first tasks, or after the last task that it got to."""
    reason: str = ""


@dataclass(frozen=True)
class Tuned:
    """The outcome of a search, the best trial first."""

    trials: Sequence[Tried]

    @property
    def best(self) -> Tried:
        return self.trials[0]


def tune(
    search: Search,
    dataset: Dataset,
    out: Path,
    *,
    trials: int = 20,
    prune: bool = True,
    options: ReadOptions | None = None,
    reporter: Reporter | None = None,
    executor: Executor | None = None,
    most: int | None = None,
) -> Tuned:
    """Try settings until there are ``trials`` of them in the study in ``out``; one that was killed goes on there.

    After each task, a trial whose accuracy lies below the median of the earlier trials is stopped, if ``prune``.
    """
    optuna = import_extra("optuna", "tune", "tune")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search.check()
    search.split.of(search.config({}), dataset)
    with RunFolder(out).lock():
        study = _Study(optuna, search, out, trials, prune)
        run_specs(
            study.specs(),
            out,
            lambda _: dataset,
            then=study.told,
            total=trials,
            executor=executor,
            most=most,
            options=options,
            reporter=reporter,
            title="search",
        )
        return study.outcome()


class _Study:
    """The trials of a search, kept by Optuna in a file that grows by a line with each event."""

    def __init__(self, optuna: Any, search: Search, out: Path, trials: int, prune: bool) -> None:
        self._optuna, self._search, self._out, self._wanted = optuna, search, out, trials
        self._state = optuna.trial.TrialState
        self._space = {one.key: one.distribution() for one in search.ranges}
        self._failure: AdagaussError | None = None
        self._prune = prune
        self._faults: dict[int, AdagaussError] = {}
        """Why a trial stopped that goes on when the search does."""
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
        question = search.question()
        if before is None:
            self._study.set_user_attr(QUESTION, question)
        elif before != question:
            raise CheckpointError(
                f"{out} holds a search with other settings, ranges or validation images, and its "
                "trials do not compare with these: repeat that command to continue it, or choose another --out"
            )

    def specs(self) -> Iterator[RunSpec]:
        """Unfinished trials, then new ones; each spec is one task of a trial."""
        for frozen in self._study.get_trials(states=(self._state.RUNNING,)):
            if (spec := self._spec(self._optuna.trial.Trial(self._study, frozen._trial_id))) is not None:
                yield spec
        while len(self._study.get_trials(deepcopy=False)) < self._wanted and len(self._faults) < MOST_FAULTS:
            number = len(self._study.get_trials(deepcopy=False))
            # Seeded for each trial, so that a search that is resumed does not draw again what it drew first.
            seed = derive_seed(self._search.split.seed, "trial", number) % 2**32
            self._study.sampler = self._optuna.samplers.TPESampler(seed=seed)
            if (spec := self._spec(self._study.ask(self._space))) is not None:
                yield spec

    def _spec(self, trial: Any) -> RunSpec | None:
        """The next task of a trial; None if there is nothing to run."""
        done = len(self._frozen(trial.number).intermediate_values)
        try:
            config = self._search.config(self._settings(trial.params))
        except ConfigError as error:  # a combination that cannot be, such as a field of another part
            self._end(trial.number, self._state.FAIL, error)
            return None
        folder = self._out / f"trial-{trial.number:04d}"
        name = f"trial {trial.number}"
        return RunSpec(name, config, folder, split=self._search.split, until=done + 1)

    def told(self, spec: RunSpec, outcome: Outcome) -> RunSpec | None:
        """Note what a task has shown; returns the next task of the trial, if it is worth it."""
        number = int(spec.folder.name.rpartition("-")[2])
        if outcome.result is None:
            assert outcome.failure is not None
            self._failure = outcome.failure
            if isinstance(outcome.failure, ConfigError | NumericalError):
                self._end(number, self._state.FAIL, outcome.failure)
            else:  # a machine that is gone, full or has other data says nothing about settings
                self._faults[number] = outcome.failure
            return None
        accuracy = outcome.result.curve[-1]
        trial = self._optuna.trial.Trial(self._study, self._frozen(number)._trial_id)
        reached = spec.until or 0
        trial.report(accuracy, reached)
        if reached >= self._search.split.tasks:
            self._study.tell(number, accuracy)
        elif self._prune and self._trails(accuracy, reached):
            self._study.tell(number, state=self._state.PRUNED)
        else:
            return replace(spec, until=reached + 1)
        return None

    def _trails(self, accuracy: float, reached: int) -> bool:
        """Whether an accuracy lies below the median of the finished trials after as many tasks.

        Not Optuna's own rule, which takes the best accuracy after any task so far: the first task's, as a rule.
        """
        finished = self._study.get_trials(deepcopy=False, states=(self._state.COMPLETE,))
        others = [one.intermediate_values[reached] for one in finished]
        return len(others) >= FREE_TRIALS and accuracy < median(others)

    def _end(self, number: int, state: Any, reason: AdagaussError) -> None:
        self._failure = reason
        self._optuna.trial.Trial(self._study, self._frozen(number)._trial_id).set_user_attr(REASON, str(reason))
        self._study.tell(number, state=state)

    def _frozen(self, number: int) -> Any:
        return self._study.get_trials(deepcopy=False)[number]

    def _settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {one.key: one.setting(params[one.key]) for one in self._search.ranges}

    def outcome(self) -> Tuned:
        """All trials: complete ones first, the best first."""
        names = {self._state.COMPLETE: COMPLETE, self._state.PRUNED: PRUNED, self._state.RUNNING: UNFINISHED}
        found = []
        for one in self._study.get_trials():
            values = list(one.intermediate_values.values())
            state = names.get(one.state, FAILED)
            reason = str(self._faults.get(one.number, "")) or one.user_attrs.get(REASON, "")
            settings = self._settings(one.params) if one.params else {}
            found.append(Tried(one.number, state, settings, values[-1] if values else None, reason))
        order = (COMPLETE, PRUNED, UNFINISHED, FAILED)
        found.sort(key=lambda one: (order.index(one.state), -(one.accuracy or 0.0), one.number))
        if not found or found[0].state != COMPLETE:
            raise self._failure or ConfigError("no trial was finished: ask for more with --trials")
        return Tuned(found)
