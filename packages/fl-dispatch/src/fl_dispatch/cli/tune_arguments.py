# SPDX-License-Identifier: Apache-2.0
"""The words that ``fl-dispatch tune`` is given, checked; each raises ConfigError naming the option and what there is."""

from __future__ import annotations

from fl_dispatch.cli.explain import dtype_name
from fl_dispatch.errors import ConfigError, did_you_mean

#: What a model computes in, and torch makes random numbers of.
_DTYPES = ("bfloat16", "float16", "float32", "float64")


def device(text: str) -> str:
    """The device type of ``--device``, once something could be put there and read; with a number the current one from now."""
    import torch

    from fl_dispatch.facts import default_device_type

    try:
        torch.zeros(1, device=text).item()  # also what "meta" cannot do
    except Exception as error:  # a probe: torch raises AssertionError, RuntimeError, ImportError and others
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        there = " and ".join(dict.fromkeys(("cpu", default_device_type())))
        raise ConfigError(f"--device: {text!r} cannot be used here; there is {there} (torch says {reason})") from error
    kind, _, index = text.partition(":")
    if index and kind != "cpu":
        getattr(torch, kind).set_device(int(index))  # what everything below takes its tensors, streams and name from
    return kind


def dtypes(text: str) -> list[str]:
    """The dtypes of ``--dtypes``, by their canonical names."""
    names = []
    for word in text.split(","):
        try:
            name = dtype_name(word.strip())
        except ConfigError:
            name = None
        if name not in _DTYPES:
            raise ConfigError(f"--dtypes: {word.strip()!r} is no dtype that is measured; known: {', '.join(_DTYPES)}")
        names.append(name)
    return list(dict.fromkeys(names))


def operators(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The operators of ``--ops``, of those that are measured."""
    names = tuple(word.strip() for word in text.split(","))
    for name in names:
        if name not in known:
            raise ConfigError(f"--ops: {name!r} is no operator that is measured; {did_you_mean(name, known)}")
    return names


def tokens(text: str) -> list[int]:
    """The numbers of ``--tokens``, ascending."""
    for word in text.split(","):
        if not word.strip().isdecimal() or int(word) < 1:
            raise ConfigError(
                f"--tokens: {word!r} is no number of tokens; give whole ones from 1 on by commas, for example 1,16,256"
            )
    return sorted({int(word) for word in text.split(",")})
