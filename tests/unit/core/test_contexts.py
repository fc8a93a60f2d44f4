# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from fl_dispatch import (
    ConfigError,
    FrozenSelectionError,
    OpExecutionError,
    SelectionError,
    SelectionPolicy,
    UnknownOperatorError,
)

A, B, C = (SelectionPolicy(prefer=f"vendor:{name}") for name in "abc")


@pytest.fixture
def one(manager, impl):
    return manager(impl("a"), impl("b"), impl("c"))


@pytest.fixture
def call(one, layer, x):
    return lambda: one.call_op("silu_and_mul", layer, x)


def test_a_context_applies_inside_and_not_after(one, call):
    assert call() == "a"
    with one.policy_context(B):
        assert call() == "b"
    assert call() == "a"


def test_contexts_nest(one, call):
    with one.policy_context(B):
        with one.policy_context(C):
            assert call() == "c"
        assert call() == "b"


def test_nothing_is_left_on_the_hot_path_after_the_last_one(one, call):
    call()
    site = one.shared_site("silu_and_mul")
    before = site.fn
    with one.policy_context(B), one.policy_context(C):
        assert site.fn is not before
    assert site.fn is before


def test_it_ends_when_the_block_raises(one, call):
    with pytest.raises(ZeroDivisionError), one.policy_context(B):
        raise ZeroDivisionError
    assert call() == "a"


def test_a_first_call_ever_inside_a_context_uses_it(one, call):
    with one.policy_context(B):
        assert call() == "b"
    assert call() == "a"


def test_a_context_helps_where_the_policy_itself_leaves_nothing(manager, impl, layer, x):
    one = manager(impl("a"), policy=SelectionPolicy(prefer="flagos", strict=True))
    with one.policy_context(A):
        assert one.call_op("silu_and_mul", layer, x) == "a"
    with pytest.raises(SelectionError):
        one.call_op("silu_and_mul", layer, x)


def test_a_context_may_leave_nothing(one, call):
    with (
        one.policy_context(SelectionPolicy(prefer="flagos", strict=True)),
        pytest.raises(SelectionError, match="strict"),
    ):
        call()
    assert call() == "a"


def test_bound_sites_and_held_functions_ignore_it(one, layer, x):
    site, held = one.bind("silu_and_mul", layer), one.resolve_op("silu_and_mul")
    with one.policy_context(B):
        assert site.fn(layer, x) == held(layer, x) == "a"


def test_a_function_resolved_inside_ignores_it_too(one, layer, x):
    with one.policy_context(B):
        assert one.resolve_op("silu_and_mul")(layer, x) == "a"


def test_other_threads_do_not_see_it(one, call):
    seen = {}
    with one.policy_context(B):
        thread = threading.Thread(target=lambda: seen.update(other=call()))
        thread.start()
        thread.join()
        seen["own"] = call()
    assert seen == {"other": "a", "own": "b"}


def test_threads_have_their_own(one, call):
    barrier = threading.Barrier(3)
    seen = {}

    def work(policy, name):
        with one.policy_context(policy):
            barrier.wait()
            seen[name] = [call() for _ in range(50)]
            barrier.wait()

    threads = [threading.Thread(target=work, args=pair) for pair in ((A, "a"), (B, "b"), (C, "c"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {name: [name] * 50 for name in "abc"}


def test_asyncio_tasks_have_their_own(one, call):
    async def work(policy, name):
        with one.policy_context(policy):
            seen = []
            for _ in range(5):
                await asyncio.sleep(0)
                seen.append(call())
        return name, seen

    async def everything():
        outside = []
        tasks = [asyncio.create_task(work(policy, name)) for policy, name in ((A, "a"), (B, "b"), (C, "c"))]
        for _ in range(5):
            await asyncio.sleep(0)
            outside.append(call())
        return dict(await asyncio.gather(*tasks)), outside

    inside, outside = asyncio.run(everything())
    assert inside == {name: [name] * 5 for name in "abc"}
    assert outside == ["a"] * 5


def test_closing_in_another_context_still_ends_it(one, call):
    context = one.policy_context(B)
    contextvars.copy_context().run(context.__enter__)
    with pytest.raises(ValueError, match="different Context"):
        context.__exit__(None, None, None)
    site = one.shared_site("silu_and_mul")
    call()
    assert site.fn is site.plain


def test_a_registration_is_seen_inside(one, impl, call):
    with one.policy_context(SelectionPolicy(prefer=("vendor:d", "vendor:b"))):
        assert call() == "b"
        one.registry.register(impl("d"))
        assert call() == "d"


def test_a_policy_change_is_seen_after_it(one, call):
    with one.policy_context(B):
        one.configure(policy=C)
        assert call() == "b"
    assert call() == "c"


def test_a_failure_inside_follows_the_contexts_policy(manager, impl, failing, layer, x):
    one = manager(impl("a"), impl("b", run=failing(), mutates=frozenset()))
    with one.policy_context(SelectionPolicy(prefer="vendor:b", strict=True)), pytest.raises(OpExecutionError) as caught:
        one.call_op("silu_and_mul", layer, x)
    assert "implementation 'vendor.b' failed" in str(caught.value)
    assert "strict forbids a fallback" in str(caught.value)


def test_names_that_do_not_exist_are_refused_on_entering(one):
    with pytest.raises(UnknownOperatorError, match="per_op names unknown operator 'rmsnorm'"):
        one.policy_context(SelectionPolicy(per_op={"rmsnorm": "vendor"}))
    with pytest.raises(ConfigError, match="token 'impl:nope'"):
        one.policy_context(SelectionPolicy(prefer="impl:nope"))


def test_it_cannot_be_entered_in_a_compiled_or_captured_region(one, monkeypatch):
    monkeypatch.setattr("fl_dispatch.facts.tracing_or_capturing", lambda: True)
    with pytest.raises(FrozenSelectionError, match="cannot be entered inside a compiled or captured region"):
        one.policy_context(B)


def test_typed_functions_follow_it(one, layer, x, monkeypatch):
    from fl_dispatch.ops import typed

    monkeypatch.setattr(typed, "_silu_and_mul", one.shared_site("silu_and_mul"))
    assert typed.silu_and_mul(layer, x) == "a"
    with one.policy_context(B):
        assert typed.silu_and_mul(layer, x) == "b"
    assert typed.silu_and_mul(layer, x) == "a"
