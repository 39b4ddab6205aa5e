"""Reads YAML files."""

from pathlib import Path

import yaml

from mindspore_rl.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """One to which the same key twice is an error, not the later one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        """See the base class. Raises: yaml.YAMLError: a key stands there twice."""
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


def read_yaml(path: Path) -> dict[str, object]:
    """The mapping that a YAML file holds; an empty file gives none.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        loader.name = path.name  # that errors tell
        content = loader.get_single_data()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read this YAML file: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:  # not UTF-8, 2024-13-45
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: the file holds a {type(content).__name__}, expected a mapping "
            "with one `key: value` a line"
        )
    return content
