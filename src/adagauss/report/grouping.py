"""Which runs belong together: one section per protocol, one group per configuration, its runs by seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adagauss.analysis.grouping import differing, labels
from adagauss.core.config import flatten, plain
from adagauss.experiments.metrics import METRICS, mean
from adagauss.experiments.run import ProtocolFacts
from adagauss.report.gathering import Gathered, LeftOut


@dataclass(frozen=True)
class Group:
    """Runs of one configuration with different seeds, all as far as the others."""

    label: str
    runs: Sequence[Gathered]

    @property
    def first(self) -> Gathered:
        return self.runs[0]

    @property
    def finished(self) -> bool:
        return self.first.finished

    @property
    def seeds(self) -> list[int]:
        return [run.config.seed for run in self.runs]


@dataclass(frozen=True)
class Section:
    """All runs of one protocol: the same classes in the same number of tasks, at one scale, on the same data."""

    title: str
    groups: Sequence[Group]
    """The best first; unfinished ones last."""

    @property
    def runs(self) -> list[Gathered]:
        return [run for group in self.groups for run in group.runs]

    @property
    def test_images(self) -> int:
        """Of all classes that the furthest run has learned."""
        return max(len(run.evaluations[-1].true) for run in self.runs)


def arrange(runs: Iterable[Gathered]) -> tuple[list[Section], list[LeftOut]]:
    """Sections by protocol, in the order of the runs, and runs that repeat another one."""
    kept: dict[tuple[str, int, str], Gathered] = {}
    without: list[LeftOut] = []
    for run in runs:
        key = (run.config.digest(), run.config.seed, _data(run))
        before = kept.setdefault(key, run)
        if before is not run:
            place, other = (run, before) if before.done >= run.done else (before, run)
            kept[key] = other
            reason = f"it has the configuration and the seed of {other.folder.path}, so it would be counted twice"
            without.append(LeftOut(place.folder.path, reason))
    by_protocol: dict[str, list[Gathered]] = {}
    for run in kept.values():
        by_protocol.setdefault(_protocol(run), []).append(run)
    titles = _distinct_titles(list(by_protocol.values()))
    sections = [Section(title, _groups(members)) for title, members in zip(titles, by_protocol.values(), strict=True)]
    return sections, without


def _groups(runs: Sequence[Gathered]) -> list[Group]:
    named = labels({run.config.digest(): run.config for run in runs})
    members: dict[tuple[str, int], list[Gathered]] = {}
    for run in runs:
        members.setdefault((run.config.digest(), run.done), []).append(run)
    groups = []
    for (digest, done), own in members.items():
        ordered = sorted(own, key=lambda run: run.config.seed)
        one = ordered[0]
        label = named[digest] if one.finished else f"{named[digest]}, {done} of {one.tasks} tasks"
        groups.append(Group(label, ordered))
    return sorted(groups, key=_rank)


def _rank(group: Group) -> tuple[bool, float]:
    best = METRICS[0].name
    return not group.finished, -mean([run.metrics[best] for run in group.runs])


def _data(run: Gathered) -> str:
    return json.dumps(run.data, sort_keys=True)


def _protocol(run: Gathered) -> str:
    stream = plain(run.config)["stream"]
    return json.dumps([stream, run.config.scale, run.data], sort_keys=True)


def _title(runs: Sequence[Gathered]) -> str:
    furthest = max(runs, key=lambda run: run.done)
    config = furthest.config
    # The sizes of tasks that nobody has learned yet are not known, and the title counts only tasks.
    sizes = furthest.sizes + (furthest.sizes[-1],) * (furthest.tasks - furthest.done)
    return ProtocolFacts(
        dataset=config.stream.dataset, scale=config.scale, tasks=sizes, classes=(), test_images=0
    ).title


def _distinct_titles(sections: Sequence[Sequence[Gathered]]) -> list[str]:
    """Titles that tell protocols apart also where only a setting of the stream, or the data, differs."""
    titles = [_title(runs) for runs in sections]
    found = []
    for title, runs in zip(titles, sections, strict=True):
        alike = [others for name, others in zip(titles, sections, strict=True) if name == title]
        if len(alike) > 1:
            streams = [flatten(plain(others[0].config)["stream"]) for others in alike]
            mine = flatten(plain(runs[0].config)["stream"])
            told = [f"{key}={mine.get(key)}" for key in differing(streams)]
            if len({_data(others[0]) for others in alike}) > 1:
                told.append(_of_data(runs[0]))
            title = f"{title} ({', '.join(told)})"
        found.append(title)
    return found


def _of_data(run: Gathered) -> str:
    digest = run.data.get("content of the test images", "")
    return f"test images {digest[:8]}" if digest else "data not recorded"
