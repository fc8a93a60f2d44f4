# SPDX-License-Identifier: Apache-2.0
"""``OpRegistry``: which operators exist and which implementations each has. Unusable ones stay visible."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator

from fl_dispatch import ops
from fl_dispatch.errors import RegistrationError, UnknownOperatorError, did_you_mean
from fl_dispatch.ops.spec import OpSpec
from fl_dispatch.types import BackendImplKind, OpImpl


class OpRegistry:
    """The table of operators and implementations; every write is checked against the operator's specification.

    Args:
        standard: whether the standard operators of ``fl_dispatch.ops`` are known (they are loaded when first asked
            for).
    """

    def __init__(self, *, standard: bool = True) -> None:
        self._standard = standard
        self._specs: dict[str, OpSpec] = {}
        self._impls: dict[str, dict[str, OpImpl]] = {}
        self._lock = threading.RLock()
        self._source: str | None = None
        self._vendor: str | None = None
        self._listeners: list[Callable[[str], None]] = []

    # -- operators

    def define(self, spec: OpSpec) -> None:
        """Add an operator beyond the standard ones; raises RegistrationError when the name is taken."""
        with self._lock:
            if spec.name in self.op_names():
                raise RegistrationError(f"operator {spec.name!r} is already defined; pick another name")
            self._specs[spec.name] = spec

    def op_names(self) -> tuple[str, ...]:
        """All operator names, sorted; torch is not needed to list them."""
        standard = ops.STANDARD_OPERATORS if self._standard else {}
        return tuple(sorted({*standard, *self._specs}))

    def spec(self, op_name: str) -> OpSpec:
        """The specification of one operator; raises UnknownOperatorError with the closest name."""
        spec = self._specs.get(op_name)
        if spec is None:
            if not self._standard or op_name not in ops.STANDARD_OPERATORS:
                raise UnknownOperatorError(f"unknown operator {op_name!r}; {did_you_mean(op_name, self.op_names())}")
            spec = ops.load_spec(op_name)
            self._specs[op_name] = spec
        return spec

    # -- implementations

    def register(self, impl: OpImpl) -> None:
        """Add one implementation.

        Raises:
            RegistrationError: the id is taken for this operator, the signature differs from the standard one (both
                are named), a declaration names what does not exist, or the vendor is not the one whose entry point is
                being loaded.
            FrozenSelectionError: a manager that uses this registry holds a frozen selection of the operator.
            UnknownOperatorError: the operator does not exist.
        """
        spec = self.spec(impl.op_name)
        missing = getattr(inspect.unwrap(impl.fn), "_missing_method", None)
        if missing is not None:
            raise RegistrationError(f"{impl}: {missing}")
        if impl.kind is BackendImplKind.NATIVE or impl.impl_id == BackendImplKind.NATIVE.value:
            raise RegistrationError(f"{impl}: 'native' is the framework's own method, which nobody registers")
        check_signature(impl, spec)
        check_declarations(impl, spec)
        if self._vendor is not None and impl.vendor != self._vendor:
            raise RegistrationError(
                f"{impl}: vendor is {impl.vendor!r} but the entry point is named {self._vendor!r}; "
                "name both alike, because policies and reports speak of one vendor name"
            )
        if impl.registered_by is None and self._source is not None:
            impl = dataclasses.replace(impl, registered_by=self._source)
        with self._lock:
            known = self._impls.setdefault(impl.op_name, {})
            if impl.impl_id in known:
                other = known[impl.impl_id].registered_by or "an earlier call"
                raise RegistrationError(
                    f"{impl}: id already registered by {other}, now again by {impl.registered_by or 'this call'}; "
                    "ids are unique per operator, for example 'vendor.my_chip.v2'"
                )
            known[impl.impl_id] = impl
        try:
            for listener in tuple(self._listeners):
                listener(impl.op_name)
        except BaseException:
            # A manager whose selection is frozen refuses; what it does not follow must not be listed either.
            with self._lock:
                del known[impl.impl_id]
            raise

    def register_many(self, impls: Iterable[OpImpl]) -> None:
        """Add several. Good ones are kept even if others are refused; one RegistrationError names all refused ones."""
        problems = []
        for impl in impls:
            try:
                self.register(impl)
            except (RegistrationError, UnknownOperatorError) as error:
                problems.append(str(error))
        if problems:
            raise RegistrationError("; ".join(problems))

    def get(self, op_name: str) -> tuple[OpImpl, ...]:
        """The implementations of one operator, in registration order; raises UnknownOperatorError."""
        if op_name not in self._impls:
            self.spec(op_name)
        return tuple(self._impls.get(op_name, {}).values())

    def snapshot(self) -> dict[str, tuple[OpImpl, ...]]:
        """A copy of the whole table: operator name to implementations."""
        with self._lock:
            return {op: tuple(impls.values()) for op, impls in sorted(self._impls.items())}

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call ``listener(op_name)`` after each registration."""
        self._listeners.append(listener)

    @contextlib.contextmanager
    def registering(self, source: str, vendor: str | None = None) -> Iterator[OpRegistry]:
        """While a distribution registers: note it as the source, and hold it to its vendor name."""
        previous = (self._source, self._vendor)
        self._source, self._vendor = source, vendor
        try:
            yield self
        finally:
            self._source, self._vendor = previous


def check_signature(impl: OpImpl, spec: OpSpec) -> None:
    """Raise RegistrationError unless ``impl.fn`` takes the operator's standard arguments, by place and by name.

    The first parameter is always passed by place, so its name is free. Extra parameters need defaults. A callable
    without an introspectable signature (a builtin) is accepted as it is.
    """
    try:
        actual = inspect.signature(impl.fn)
    except (TypeError, ValueError):
        return
    have = list(actual.parameters.values())
    want = list(spec.signature.parameters.values())
    kinds = {parameter.kind for parameter in have}
    if inspect.Parameter.VAR_POSITIONAL in kinds and inspect.Parameter.VAR_KEYWORD in kinds:
        return
    problem = None
    for index, parameter in enumerate(want):
        if index < len(have) and have[index].kind is inspect.Parameter.POSITIONAL_ONLY:
            if index == 0:
                continue
            problem = f"parameter {parameter.name!r} cannot be passed by name"
            break
        if index >= len(have) or have[index].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            problem = f"parameter {parameter.name!r} is missing"
            break
        if index > 0 and have[index].name != parameter.name:
            problem = f"parameter {index + 1} is named {have[index].name!r}, not {parameter.name!r}"
            break
        if parameter.default is not parameter.empty and have[index].default is parameter.empty:
            problem = f"parameter {parameter.name!r} has no default"
            break
    else:
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        for extra in have[len(want) :]:
            if extra.kind not in variadic and extra.default is extra.empty:
                problem = f"extra parameter {extra.name!r} has no default"
                break
    if problem is not None:
        raise RegistrationError(
            f"{impl}: {problem}; the implementation has {impl.op_name}{actual}, "
            f"the standard is {spec.name}{spec.signature}"
        )


def check_declarations(impl: OpImpl, spec: OpSpec) -> None:
    """Raise RegistrationError for a declaration that can never match: a misspelt dtype, argument or field."""
    fields = tuple(field.name for field in spec.fields)
    for what, names, known in (
        ("honours names", impl.honours, fields),
        ("reads names", impl.reads, fields),
        ("mutates names", impl.mutates, spec.parameters),
    ):
        for name in sorted(names or ()):
            if name not in known:
                raise RegistrationError(
                    f"{impl}: {what} {name!r}, which {spec.name} does not have; {did_you_mean(name, known)}"
                )
    forbidden = (impl.mutates or frozenset()) - spec.may_mutate
    if forbidden:
        allowed = f"only {', '.join(sorted(spec.may_mutate))}" if spec.may_mutate else "nothing"
        raise RegistrationError(
            f"{impl}: mutates names {', '.join(map(repr, sorted(forbidden)))}; "
            f"callers of {spec.name} expect that {allowed} may be written to"
        )
    if impl.dtypes is not None:
        import torch

        for name in sorted(impl.dtypes):
            if not isinstance(getattr(torch, name, None), torch.dtype):
                real = [word for word, value in vars(torch).items() if isinstance(value, torch.dtype)]
                raise RegistrationError(
                    f"{impl}: dtypes names {name!r}, which torch does not have; {did_you_mean(name, real)}"
                )
