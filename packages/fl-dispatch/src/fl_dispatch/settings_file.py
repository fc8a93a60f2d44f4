# SPDX-License-Identifier: Apache-2.0
"""Reading a file of settings: YAML, a mapping, each key once."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from fl_dispatch.errors import ConfigError


def read_settings(path: str, named_by: str) -> Mapping[str, Any]:
    """The settings of a file by key.

    Args:
        path: the file.
        named_by: the variable or argument that named it, for messages.

    Raises:
        ConfigError: it cannot be read, is no YAML, no mapping, or has a key twice.
    """
    import yaml

    try:
        with open(path, encoding="utf-8") as stream:
            content = yaml.load(stream, _loader())
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read the configuration file {path!r} named by {named_by}: {why}") from error
    # PyYAML's constructors also let these through, for example for `2020-13-45` or `!!timestamp x`.
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: the file must hold settings by key, not a {type(content).__name__}")
    return content


@functools.cache
def _loader() -> Any:
    """PyYAML's safe loader, which alone would take the last of several equal keys and drop the others."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: dict[str, int] = {}
            for key_node, _ in node.value:
                # Other keys than scalars are refused elsewhere; `<<` merges may repeat.
                if not isinstance(key_node, yaml.ScalarNode) or key_node.value == "<<":
                    continue
                if key_node.value in seen:
                    raise ValueError(
                        f"the key {key_node.value!r} is there twice, in lines {seen[key_node.value]} and "
                        f"{key_node.start_mark.line + 1}; keep one of them"
                    )
                seen[key_node.value] = key_node.start_mark.line + 1
            return super().construct_mapping(node, deep)

    return Loader
