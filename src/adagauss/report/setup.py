"""How the runs were made: folders, commands, settings with their origins, environment and code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from adagauss.analysis.grouping import differing, settings_of
from adagauss.core.config import flatten, plain
from adagauss.experiments.environment import COMMAND, COMMIT, source_digest
from adagauss.report.commands import command
from adagauss.report.gathering import Gathered, LeftOut
from adagauss.report.grouping import Group, Section
from adagauss.report.html import Markup, details, join, name, table, tag, text
from adagauss.utils.files import as_yaml

MOST_COMMAND = 20_000
"""Characters of a command."""


def made(section: Section) -> Markup:
    """Every run: its folder, seed, state, and the command that makes it again."""
    heads = ["run folder", "method", "seed", "tasks", "configuration"]
    rows = [
        [
            name(run.folder.path, 90),
            name(group.label),
            run.config.seed,
            f"{run.done} of {run.tasks}",
            run.config.digest(),
        ]
        for group in section.groups
        for run in group.runs
    ]
    return tag(
        "div",
        tag("h3", "Runs and their commands"),
        table(heads, rows, label=f"runs: {section.title}", words=(0, 1, 4)),
        details("Commands", *(_commands(group) for group in section.groups)),
        class_="card",
    )


def settings(section: Section) -> Markup:
    """The configuration of each method with the layer that each setting comes from."""
    return tag(
        "div",
        tag("h3", "Configuration"),
        tag(
            "p",
            "Every setting of a method can be changed with --set. Its origin is the layer that set it last: the "
            "composition of the method, a preset, its authors' settings for the dataset, what is true of the images, "
            "the protocol, or the user (“settings”).",
            class_="quiet",
        ),
        *_differences(section.groups),
        *(details(name(group.label), _settings_table(group)) for group in section.groups),
        class_="card",
    )


def environments(section: Section) -> Markup:
    """Versions and machines, each once, with the runs that they belong to."""
    found: dict[str, list[Gathered]] = {}
    for run in section.runs:
        found.setdefault(json.dumps(_machine(run.environment), sort_keys=True), []).append(run)
    blocks = []
    for runs in found.values():
        facts = _machine(runs[0].environment)
        rows = [[key, _code(value) if key == "source" else value] for key, value in facts.items()]
        of = f"{len(runs)} run{'s' * (len(runs) > 1)}" if len(found) > 1 else "all runs"
        shown = table(["what", "version or value"], rows, label="environment", words=(0, 1)) if rows else None
        missing = tag("p", "No environment was kept with these runs.") if not rows else None
        which = tag("p", join((name(run.folder.path, 90) for run in runs), "; "), class_="quiet")
        blocks.append(details(f"Environment of {of}", which if len(found) > 1 else None, shown, missing))
    return tag("div", tag("h3", "Environment and data"), *blocks, _data(section.runs), class_="card")


def cautions(section: Section) -> list[str]:
    """Sentences about runs that cannot be compared without a second thought."""
    found = []
    codes = {run.environment.get("source", "unknown") for run in section.runs}
    if len(codes) > 1:
        found.append(
            f"The runs were made with {len(codes)} versions of the code ({', '.join(sorted(codes))}): see the "
            "environment of each before comparing them."
        )
    unfinished = [run for run in section.runs if not run.finished]
    if unfinished:
        found.append(
            f"Unfinished runs: {len(unfinished)} of {len(section.runs)}. They are shown as far as they have come, "
            "apart from the others; their numbers are over fewer classes."
        )
    seeds = {tuple(group.seeds) for group in section.groups if group.finished}
    if len(seeds) > 1:
        found.append("Not every method was run with the same seeds.")
    return found


def left_out(runs: Sequence[LeftOut]) -> Markup | None:
    """Folders that were given and are not shown, and why."""
    if not runs:
        return None
    items = (tag("li", name(run.path, 90), ": ", run.reason) for run in runs)
    title = f"{len(runs)} folder{'s are' if len(runs) > 1 else ' is'} left out"
    return tag("div", details(title, tag("ul", *items), opened=len(runs) <= 3), class_="note")


def _commands(group: Group) -> Markup:
    blocks: list[Markup] = []
    recorded = dict.fromkeys(run.environment[COMMAND] for run in group.runs if COMMAND in run.environment)
    if recorded:
        blocks.append(tag("p", "Started with", class_="quiet"))
        blocks.append(_code_lines(recorded))
    again = [command(run.config) for run in group.runs]
    lines = [one for one in again if one is not None]
    if len(lines) == len(again):
        digest = group.first.config.digest()
        blocks.append(tag("p", f"One run alone, with the same configuration ({digest})", class_="quiet"))
        blocks.append(_code_lines(lines))
    else:
        blocks.append(
            tag("p", "No options of the command line give this configuration: it is in config.yaml.", class_="quiet")
        )
    return join([tag("h4", name(group.label)), *blocks])


def _code_lines(lines: Iterable[str]) -> Markup:
    return tag("pre", tag("code", join((text(line, MOST_COMMAND) for line in lines), "\n")))


def _differences(groups: Sequence[Group]) -> list[Markup]:
    """Of several configurations of one method: only the settings in which they differ."""
    blocks = []
    for method in dict.fromkeys(group.first.config.method_name for group in groups):
        own = [group for group in groups if group.first.config.method_name == method]
        flat = [settings_of(group.first.config) for group in own]
        keys = differing(flat)
        if keys:
            rows = [[key, *(_value(one, key) for one in flat)] for key in keys]
            heads = ["setting", *(name(group.label) for group in own)]
            blocks.append(tag("h4", f"Where the configurations of {method} differ"))
            blocks.append(
                table(heads, rows, label=f"differing settings of {method}", words=range(len(heads)), class_="settings")
            )
    return blocks


def _value(settings: Mapping[str, object], key: str) -> str:
    return as_yaml(settings[key]) if key in settings else "–"


def _settings_table(group: Group) -> Markup:
    run = group.first
    origins = run.folder.origins
    settings = {
        key.removeprefix("method."): value for key, value in flatten(plain(run.config)).items() if key != "seed"
    }
    rows = [[key, as_yaml(value), origins.get(key, "")] for key, value in settings.items()]
    return table(
        ["setting", "value", "origin"], rows, label=f"settings: {group.label}", words=(0, 1, 2), class_="settings"
    )


def _machine(environment: Mapping[str, str]) -> dict[str, str]:
    """Without the command, which is different for every run."""
    return {key: value for key, value in environment.items() if key != COMMAND}


def _code(digest: str) -> str:
    same = "the code that made this report" if digest == source_digest() else "not the code that made this report"
    return f"{digest} (digest of the library's source: {same})"


def _data(runs: Sequence[Gathered]) -> Markup:
    facts = next((run.data for run in runs if run.data), {})
    if not facts:
        return tag("p", "No fingerprint of the data was kept with these runs.", class_="quiet")
    rows = [[key, value[:16]] for key, value in facts.items()]
    return details("Fingerprints of the data", table(["what", "SHA-256"], rows, label="data", words=(0, 1)))


def commits(runs: Iterable[Gathered]) -> list[str]:
    """The commits that the runs were made with, as far as they were kept."""
    return list(dict.fromkeys(run.environment[COMMIT] for run in runs if COMMIT in run.environment))
