# SPDX-License-Identifier: Apache-2.0
"""Every deliberately wrong vendor is caught by the check that is about its fault, and by no other."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit import Run, run_pytest
from sample_wheels import PLUGINS

#: As much as a machine with many other things to do needs.
pytestmark = pytest.mark.timeout(900)

SOURCE = PLUGINS / "planted-faults"
VENDORS = tuple(
    tomllib.loads((SOURCE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"][
        "fl_dispatch.vendors"
    ]
)
REFUSED = ("fault_wrong_signature", "fault_missing_import", "fault_missing_method")
WRONG = tuple(name for name in VENDORS if name not in REFUSED)
#: All checks in float16; in other dtypes, processes and graphs only where the fault is, to save time.
CHOSEN = (
    "(not processes or fault_thread_made_at_import or fault_main_process_only or fault_tail_left_out or fault_loads)"
    " and (not compile or fault_logs) and not bfloat16"
    " and (not float32 or fault_declared_dtype_raises or fault_another_result_every_time)"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, installed: Callable[[str], Path]) -> Run:
    vendors = [f"--fl-vendor={name}" for name in VENDORS]
    folder = tmp_path_factory.mktemp("faults")
    return run_pytest(folder, *vendors, "-q", "-k", CHOSEN, path=(installed("planted-faults"),))


@pytest.fixture(scope="module")
def declared() -> dict[str, dict[str, Any]]:
    """Fault to its ``caught_by`` and ``besides``, read from the source: importing it here would not be isolated."""
    tree = ast.parse((SOURCE / "src" / "planted_faults" / "faults.py").read_text(encoding="utf-8"))
    dtypes = ("float32", "float16", "bfloat16")
    known = {
        "numbers": lambda family, which=dtypes: tuple(f"numbers-{dtype}-{family}" for dtype in which),
        "fault": lambda operator, report, *caught, besides=(), **rest: (report, caught, besides),
    }
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            call = node.decorator_list[0]
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "fault":
                call.keywords = [keyword for keyword in call.keywords if keyword.arg == "besides"]
                report, caught, besides = eval(ast.unparse(call), known)
                found[f"fault_{node.name}"] = {"report": report, "caught_by": caught, "besides": besides}
    return found


def test_there_is_an_entry_point_for_every_fault(declared: dict[str, dict[str, Any]]) -> None:
    assert set(declared) == set(WRONG)
    assert len(WRONG) + len(REFUSED) >= 15
    assert len({fault["report"] for fault in declared.values()}) == len(declared)


@pytest.mark.parametrize("vendor", WRONG)
def test_the_right_check_names_the_fault(run: Run, declared: dict[str, dict[str, Any]], vendor: str) -> None:
    failed = run.failed(vendor)
    ran = run.names(vendor)
    expected = [name for name in declared[vendor]["caught_by"] if any(one.startswith(name) for one in ran)]
    assert expected, ran
    assert [name for name in expected if not any(one.startswith(name) for one in failed)] == []


@pytest.mark.parametrize("vendor", WRONG)
def test_no_other_check_blames_it(run: Run, declared: dict[str, dict[str, Any]], vendor: str) -> None:
    allowed = (*declared[vendor]["caught_by"], *declared[vendor]["besides"])
    assert {name for name in run.failed(vendor) if not name.startswith(allowed)} == set()


def message(run: Run, vendor: str, beginning: str) -> str:
    assert run.report is not None
    return next(
        str(check["message"])
        for check in run.report["checks"]
        if check["vendor"] == vendor and f"{check['check']}-{check['variant']}".startswith(beginning)
    )


def test_a_wrong_number_is_shown_with_everything_to_find_it(run: Run) -> None:
    lines = dict(
        line.split(":", 1) for line in message(run, "fault_tail_left_out", "numbers-float16-odd_sizes").splitlines()
    )
    found = {name: text.strip() for name, text in lines.items()}
    assert found["operator"] == "silu_and_mul"
    assert found["implementation"] == "vendor.fault_tail_left_out (planted-faults 1.0) on cpu"
    assert found["check"] == "numbers: results agree with float64 mathematics"
    assert found["problem"].startswith("the result is wrong in ")
    assert found["input"].startswith("5 tokens, d=1 (float16): float16[5, 2]@cpu")
    assert found["first wrong"].startswith("element [0, 0]: got 0, expected ")
    assert "times what is allowed" in found["error"]
    assert "because: two roundings" in found["tolerance"]
    name = "silu_and_mul-vendor.fault_tail_left_out-numbers-float16-odd_sizes"
    assert found["reproduce"] == f"pytest --fl-vendor fault_tail_left_out --fl-operator silu_and_mul -k {name}"


@pytest.mark.parametrize(
    ("vendor", "check", "words"),
    [
        ("norm_in_place", "mutation-writes", "wrote to x, and does not declare it in mutates"),
        ("undeclared_in_place_add", "mutation-writes", "wrote to residual, and does not declare it in mutates"),
        ("writes_past_the_end", "mutation-writes", "bytes beyond the end of"),
        (
            "declares_writes_it_does_not_do",
            "mutation-writes",
            "declares that it writes to residual, x, which no call did",
        ),
        (
            "seeds_the_global_generator",
            "mutation-writes",
            "changed the state of the CPU's random number generator, which the whole process shares",
        ),
        ("one_output_buffer", "mutation-kept", "each call has to return memory of its own"),
        ("declared_dtype_raises", "limits-accepts-float32", "not implemented for Float"),
        ("no_dtype_at_all", "limits-accepts", "declares dtypes=[], none of those that silu_and_mul is checked in"),
        ("predicate_raises", "limits-predicates", "supports() raised AttributeError"),
        ("not_supported_too_late", "limits-accepts", "after it had written to its inputs"),
        (
            "reads_a_private_field",
            "fields",
            "read obj.hidden_size; the specification of rms_norm has cast_x_before_out_mul",
        ),
        ("another_result_every_time", "determinism-float32", "with the same input gave other bits"),
        ("result_not_cast_back", "shapes-real", "returns float32[0, 64]@cpu instead of float16[0, 64]@cpu"),
        ("result_padded", "shapes-real", "contiguous inputs gave a result with strides ("),
        ("scratch_shared_by_threads", "threads", "gave other bits than the same call alone"),
        ("works_only_in_the_main_thread", "threads", "call 1 of a thread failed with AttributeError: 'NoneType'"),
        ("logs_while_tracing", "compile", "torch.compile raised Unsupported"),
        ("loads_in_the_first_call", "processes-trace", "after trace: torch.compile raised Unsupported"),
        ("reads_back_to_the_host", "capture-host_reads", "reads values back to the host: aten::_local_scalar_dense"),
        ("thread_made_at_import", "processes-fork", "after fork: raised TimeoutError: the worker thread"),
        ("main_process_only", "processes-spawn", "after spawn: raised RuntimeError: context was created in another"),
        ("by_place_only", "signature", "passed by name it raised TypeError"),
        ("wrong_signature", "registration", "the vendor is partial: OpImpl(rms_norm, vendor.fault_wrong_signature): "),
        ("missing_method", "registration", "_Incomplete has no method rms_norm()"),
        ("missing_import", "registration", "the vendor is broken: ModuleNotFoundError: No module named"),
    ],
)
def test_the_message_says_what_is_wrong(run: Run, vendor: str, check: str, words: str) -> None:
    assert words in " ".join(message(run, f"fault_{vendor}", check).split())


@pytest.mark.parametrize("vendor", ["fault_wrong_signature", "fault_missing_method"])
def test_what_is_good_beside_a_refused_implementation_is_checked_and_passes(run: Run, vendor: str) -> None:
    assert run.failed(vendor) == {"registration"}
    assert len(run.names(vendor)) > 10


def test_the_run_fails(run: Run) -> None:
    assert run.status == 1
