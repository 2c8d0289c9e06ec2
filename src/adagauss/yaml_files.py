"""YAML from elsewhere, within bounds: a few lines of it can otherwise stand for gigabytes, or for hours."""

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
"""Values in all, each alias counted as everything it stands for."""
MAX_NUMBER = 100
"""Characters of a number or date: numbers to the base of 60 take time quadratic in their length."""
TEXT = "tag:yaml.org,2002:str"


class YamlError(ConfigError):
    """Text that is not YAML, or more of it than settings need; the message is the reason, in a line."""


def parse_yaml(text: str) -> Any:
    """The value that a YAML text stands for, made of plain values only.

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
        # The full text of a YAML error is a drawing of several lines.
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None and mark.line else ""
        raise YamlError(f"{reason}{where}") from error


def read_yaml(path: Path) -> Any:
    """The value in a YAML file in UTF-8; a file that is not there raises as usual."""
    if not path.is_file() and path.exists():
        raise YamlError("it is not a file")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    try:
        return parse_yaml(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        if len(content) > MAX_BYTES:  # a character may be cut at the bound
            raise YamlError(f"it is longer than {MAX_BYTES // 1024} KiB, which no settings are") from error
        raise YamlError("it is not text in UTF-8") from error


class _BoundedLoader(yaml.SafeLoader):
    """Counts while it reads, so that what is too much is refused before it is built."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0
        self._sizes: dict[int, int] = {}
        """Values that each finished node stands for; an alias to any other is one to something around it."""

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        is_alias = self.check_event(AliasEvent)
        before = self._nodes
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise YamlError(f"it is nested more than {MAX_DEPTH} deep, which no settings are")
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
            raise YamlError(f"a {kind} stands where the name of a setting should")
        if key.value in seen:
            raise YamlError(f"{key.value[:50]!r} is given twice in line {key.start_mark.line + 1}")
        seen.add(key.value)
