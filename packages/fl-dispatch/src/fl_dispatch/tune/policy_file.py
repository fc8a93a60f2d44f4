# SPDX-License-Identifier: Apache-2.0
"""Writing the policy file: orders that the settings accept, with the figures and versions they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fl_dispatch.errors import ConfigError
from fl_dispatch.tune.choose import Orders
from fl_dispatch.tune.measure import Figure
from fl_dispatch.types import BackendImplKind, OpImpl

_HEAD = """\
# Written by fl-dispatch tune. Use it with SGLANG_FL_CONFIG, VLLM_FL_CONFIG or FL_DISPATCH_CONFIG.
# Settings in the environment still win; other settings may be added here. `tuned` is not read as a setting.
"""


def token(impl: OpImpl) -> str:
    """The policy token that stands for this implementation and no other."""
    if impl.kind in (BackendImplKind.DEFAULT, BackendImplKind.REFERENCE) and impl.impl_id == impl.kind.value:
        return impl.impl_id
    return f"impl:{impl.impl_id}"


def content(orders: Mapping[str, Orders], tokens: Mapping[tuple[str, str], str], tuned: Mapping[str, Any]) -> str:
    """The file's text.

    Args:
        orders: by operator, of implementation ids.
        tokens: the policy token of each operator and implementation id.
        tuned: what is kept besides: device, versions, command, figures.
    """

    def named(op_name: str, order: Sequence[str]) -> list[str]:
        return [tokens[op_name, impl_id] for impl_id in order]

    per_op: dict[str, Any] = {}
    for op_name, order in orders.items():
        if isinstance(order, Mapping):
            per_op[op_name] = {bound: named(op_name, each) for bound, each in order.items()}
        elif order:
            per_op[op_name] = named(op_name, order)
    figures: Sequence[Figure] = tuned.get("figures", ())
    plain = {key: value for key, value in tuned.items() if key != "figures"}
    plain["not_able"] = dict(tuned.get("not_able", {})) | not_able(figures)
    text = _HEAD + yaml.safe_dump({"per_op": per_op}, sort_keys=False, default_flow_style=None, width=110)
    text += "\n" + yaml.safe_dump({"tuned": plain}, sort_keys=False, default_flow_style=None, width=110)
    measured = [one.as_dict() for one in figures if one.failed is None]
    rows = [yaml.safe_dump(one, sort_keys=False, default_flow_style=True, width=10_000) for one in measured]
    return text + "  figures:\n" + "".join(f"  - {row}" for row in rows)


def not_able(figures: Sequence[Figure]) -> dict[str, str]:
    """Workload, dtype and implementation, in one word, to the reason why it has no times."""
    return {f"{one.workload}, {one.dtype}, {one.impl_id}": one.failed for one in figures if one.failed is not None}


def picture_beside(path: Path) -> Path:
    """Where the picture of a policy file goes."""
    return path.with_suffix(".svg")


def check_target(path: Path, force: bool) -> None:
    """Before anything is measured: raise ConfigError where the policy or its picture could not be written."""
    if path.suffix.lower() == ".svg":
        better = str(path.with_suffix(".yaml"))
        raise ConfigError(f"--output: {str(path)!r} is where the picture goes; name the policy, for example {better!r}")
    try:
        if path.is_dir():
            raise ConfigError(f"--output: {str(path)!r} is a folder; for example {str(path / 'fl-tuned.yaml')!r}")
        if not path.parent.is_dir():
            raise ConfigError(f"--output: there is no folder {str(path.parent)!r}; make it, or name another file")
        targets = (path, picture_beside(path))
        for target in targets:
            if target.exists() and not force:
                raise ConfigError(f"--output: {str(target)!r} is there already; --force overwrites it")
        for target in targets:
            _try_to_write(target)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> ConfigError:
    """What to raise where writing the policy or its picture failed."""
    file = str(error.filename or path)
    return ConfigError(
        f"--output: cannot write {file!r}: {error.strerror}; name a file in a folder that you may write to"
    )


def _try_to_write(target: Path) -> None:
    """Raises OSError. Leaves what is there as it is: permissions alone do not tell (a full or read-only disk, root)."""
    new = not target.exists()
    with target.open("ab"):
        pass
    if new:
        target.resolve().unlink()
