"""Read untrusted YAML within limits: a few lines can otherwise take gigabytes of memory or hours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from adagauss.errors import ConfigError

MAX_BYTES = 2**18
MAX_DEPTH = 40
MAX_NODES = 20_000
"""Limit for all values, with each alias counted as all the values it stands for."""
MAX_NUMBER = 100
"""Limit for the characters of a number or date: base-60 numbers take time quadratic in their length."""
TEXT = "tag:yaml.org,2002:str"


class YamlError(ConfigError):
    """Text that is not YAML, or exceeds the limits; the message is the reason in one line."""


def as_yaml(value: object) -> str:
    """A plain value in one line, as `parse_yaml` and ``--set`` read it.

    >>> as_yaml([1, "a"]), as_yaml(None)
    ('[1, a]', 'null')
    """
    return yaml.safe_dump(value, default_flow_style=True, width=float("inf")).removesuffix("\n").removesuffix("\n...")


def parse_yaml(text: str) -> Any:
    """Parse a YAML text into plain values.

    >>> parse_yaml("{tied: 0.5, kinds: [a, b]}")
    {'tied': 0.5, 'kinds': ['a', 'b']}
    """
    if len(text) > MAX_BYTES:
        raise YamlError(f"it is longer than {MAX_BYTES // 1024} KiB, which no settings are")
    try:
        return yaml.load(text, Loader=_BoundedLoader)  # a safe loader: it makes plain values only
    except YamlError:
        raise
    except (yaml.YAMLError, ValueError, TypeError) as error:  # a ValueError is a date that does not exist
        # The full text of a YAML error has several lines.
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None and mark.line else ""
        raise YamlError(f"{reason}{where}") from error


def read_yaml(path: Path) -> Any:
    """Read a YAML file in UTF-8; a missing file raises as usual."""
    if not path.is_file() and path.exists():
        raise YamlError("it is not a file")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    try:
        return parse_yaml(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        if len(content) > MAX_BYTES:  # a character may be cut at the limit
            raise YamlError(f"it is longer than {MAX_BYTES // 1024} KiB, which no settings are") from error
        raise YamlError("it is not text in UTF-8") from error


class _BoundedLoader(yaml.SafeLoader):
    """Counts while it reads, so that excessive content is refused before it is built."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0
        self._sizes: dict[int, int] = {}
        """Number of values of each finished node; an alias to an unfinished node refers to a node that contains it."""

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        is_alias = self.check_event(AliasEvent)
        before = self._nodes
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise YamlError(f"it is nested more than {MAX_DEPTH} levels deep, which no settings are")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if is_alias and id(node) not in self._sizes:
            raise YamlError("a value refers to itself")
        self._nodes += self._sizes[id(node)] if is_alias else 1
        if self._nodes > MAX_NODES:
            raise YamlError(f"it stands for more than {MAX_NODES} values, which no settings do")
        self._sizes.setdefault(id(node), self._nodes - before)
        if isinstance(node, ScalarNode) and node.tag != TEXT and len(node.value) > MAX_NUMBER:
            raise YamlError(f"a number of more than {MAX_NUMBER} characters; put text into quotation marks")
        if isinstance(node, MappingNode):
            _refuse_twins(node)
        return node


def _refuse_twins(node: MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, ScalarNode):
            kind = "list" if isinstance(key, SequenceNode) else "mapping"
            raise YamlError(f"a {kind} is where the name of a setting should be")
        if key.value in seen:
            raise YamlError(f"{key.value[:50]!r} is given twice in line {key.start_mark.line + 1}")
        seen.add(key.value)
