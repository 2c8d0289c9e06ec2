"""Ranges of settings to search: numbers between two, on a straight or a logarithmic scale, or a choice of values."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from adagauss.errors import ConfigError
from adagauss.utils.files import YamlError, parse_yaml
from adagauss.utils.registry import import_extra

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

        >>> Range.parse("classifier.tied=0..1.0").high, Range.parse("a=1e-4..0.1:log").log
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
                raise ConfigError(f"--range {text}: one value is no choice; give LOW..HIGH or A,B,C, or --set it")
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
