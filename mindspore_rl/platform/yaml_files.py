"""Reads YAML files."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from mindspore_rl.errors import ConfigError

MAX_VALUES, DEEPEST = 100_000, 100
"""Maximum number of values, each counted as often as aliases repeat it, and nesting depth."""
TOO_DEEP = f"it is nested more than {DEEPEST} deep"
NUMBERS = {
    "tag:yaml.org,2002:int": r"[-+]?(0|[1-9][0-9_]*)|0x[0-9a-fA-F]+",
    "tag:yaml.org,2002:float": (
        r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9]+)([eE][-+]?[0-9]+)?"
        r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
    ),
}
"""Numbers as in YAML 1.2: 1:30:00 is no number of seconds, and 010 is not eight."""


class _Loader(yaml.SafeLoader):
    """A loader that refuses duplicate keys and recursion, with numbers as in YAML 1.2."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (as in the base class)
        first: [(tag, form) for tag, form in forms if tag not in NUMBERS]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """See the base class. Raises: yaml.YAMLError: the document is too deep."""
        self.depth += 1
        if self.depth > DEEPEST + 1:
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def get_single_node(self) -> yaml.Node | None:
        """See the base class. Raises: yaml.YAMLError: the document is too deep or too large."""
        node = super().get_single_node()
        if node is not None:
            _check_size(node)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        """See the base class. Raises: yaml.YAMLError: a key occurs twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value} stands there twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


for _tag, _form in NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(f"({_form})$"), list("-+.0123456789"))


def _check_size(root: yaml.Node) -> None:
    """Refuses documents that are too large to read: an alias may stand for a million values."""
    found: dict[int, tuple[int, int]] = {}

    def measure(node: yaml.Node, depth: int) -> tuple[int, int]:
        """Returns a node's number of values and its depth; `depth` ends recursive aliases."""
        if id(node) not in found:
            parts = [measure(part, depth + 1) for part in _parts(node) if depth <= DEEPEST]
            values, deep = (1 + sum(n for n, _ in parts), 1 + max((d for _, d in parts), default=0))
            problem = f"it has more than {MAX_VALUES:,} values" if values > MAX_VALUES else ""
            if depth > DEEPEST or deep > DEEPEST:
                problem = TOO_DEEP
            if problem:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            found[id(node)] = values, deep
        return found[id(node)]

    measure(root, 0)


def _parts(node: yaml.Node) -> Iterator[yaml.Node]:
    """Yields the child nodes of a node, keys included."""
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


class YamlKeys(dict[str, object]):
    """The mapping in a YAML file."""

    def __init__(self, file: Path, keys: dict[str, object]) -> None:
        super().__init__(keys)
        self.file = file


def read_yaml(path: Path) -> YamlKeys:
    """Reads the mapping in a YAML file; an empty file gives an empty one.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        loader.name = path.name  # for error messages
        content = loader.get_single_data()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read this YAML file: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:  # not UTF-8, 2024-13-45
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: the file holds a {type(content).__name__}, expected a mapping "
            "with one `key: value` a line"
        )
    return YamlKeys(path, content)
