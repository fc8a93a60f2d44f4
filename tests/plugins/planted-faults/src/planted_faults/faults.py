# SPDX-License-Identifier: Apache-2.0
"""The faults, one function each. What each is wrong in is said above it; all else about it is right."""

from __future__ import annotations

import functools
import logging
import threading
import time
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import silu

from fl_dispatch import NotSupported
from fl_dispatch.ops import load_spec
from planted_faults import processes
from planted_faults.fault import fault, numbers

silu_and_mul = load_spec("silu_and_mul").reference
rms_norm = load_spec("rms_norm").reference
rotary_embedding = load_spec("rotary_embedding").reference
_NORM_FIELDS = ("weight", "cast_x_before_out_mul", "cast_x_to_weight_dtype")


_table = None


# -- numbers


@fault("silu_and_mul", "the accuracy dropped, and nothing says in which operator", "numbers-")
def off_by_a_tenth(obj, x):
    return silu_and_mul(obj, x) * 1.1


@fault("rms_norm", "large activations became infinite in float16", "numbers-float16-large",
       besides=("numbers-float16-tiny", "numbers-float16-mixed"))  # fmt: skip
def squares_in_half(obj, x, residual=None):
    total = x if residual is None else (x.float() + residual.float()).to(x.dtype)
    scale = torch.rsqrt(total.pow(2).float().mean(-1, keepdim=True) + obj.variance_epsilon)
    wide = obj.weight.dtype if getattr(obj, "cast_x_before_out_mul", False) else x.dtype
    wide = x.dtype if getattr(obj, "cast_x_to_weight_dtype", False) else torch.promote_types(wide, x.dtype)
    out = (total.float() * scale * obj.weight).to(wide)
    return out if residual is None else (out, total)


@fault(
    "silu_and_mul",
    "a kernel that takes a pointer gave garbage for a slice",
    *numbers("non_contiguous"),
)
def strides_ignored(obj, x):
    dense = torch.as_strided(x, x.shape, torch.empty(x.shape, device="meta").stride())
    gate, up = dense.chunk(2, dim=-1)
    return silu(gate) * up


@fault(
    "silu_and_mul",
    "a hidden size that is no multiple of the vector width lost its tail",
    *numbers("odd_sizes"),
)
def tail_left_out(obj, x):
    out = silu_and_mul(obj, x)
    whole = out.shape[-1] // 8 * 8
    out[..., whole:] = 0
    return out


@fault("rotary_embedding", "the neox style was hard-coded", "numbers-")
def neox_hard_coded(obj, query, key, cos, sin, position_ids, rotary_interleaved=False, inplace=True):
    return rotary_embedding(obj, query, key, cos, sin, position_ids, False, inplace)


@fault(
    "rotary_embedding",
    "partial rotary lost the part of a head that is not rotated",
    *numbers("partial_rotary"),
)
def partial_rotary_lost(obj, query, key, cos, sin, position_ids, rotary_interleaved=False, inplace=True):
    query, key = rotary_embedding(obj, query, key, cos, sin, position_ids, rotary_interleaved, inplace)
    query[..., 2 * cos.shape[-1] :] = 0
    key[..., 2 * cos.shape[-1] :] = 0
    return query, key


@fault(
    "rms_norm",
    "a float32 weight beside half activations gave NaN without an error",
    *numbers("mixed_dtypes", ("float16", "bfloat16")),
)
def other_weight_dtype_is_nan(obj, x, residual=None):
    result = rms_norm(obj, x, residual)
    if obj.weight.dtype == x.dtype:
        return result
    return result * torch.nan if residual is None else (result[0] * torch.nan, result[1])


@fault(
    "silu_and_mul",
    "a model that had diverged produced plausible text",
    *numbers("nan_and_inf"),
)
def nan_swallowed(obj, x):
    return silu_and_mul(obj, x).nan_to_num()


@fault(
    "silu_and_mul",
    "an idle data-parallel rank ran no token and crashed",
    *numbers("zero_tokens"), "limits-accepts",
    besides=("shapes-", "mutation-", "fields"),
)  # fmt: skip
def zero_tokens_crash(obj, x):
    if not x.numel():
        raise RuntimeError("invalid launch: grid of size 0")
    return silu_and_mul(obj, x)


@fault("rms_norm", "a larger model of the same family gave garbage: one block was the whole row",
       *numbers("model_sizes"))  # fmt: skip
def one_block_a_row(obj, x, residual=None):
    result = rms_norm(obj, x, residual)
    (result if residual is None else result[0])[..., 4096:] = 0
    return result


@fault("rms_norm", "a model with another epsilon lost accuracy: the kernel had 1e-6 of its own",
       *numbers("tiny_magnitudes"), besides=("numbers-", "mutation-same_residual"))  # fmt: skip
def epsilon_hard_coded(obj, x, residual=None):
    fields = {name: value for name in _NORM_FIELDS if (value := getattr(obj, name, None)) is not None}
    return rms_norm(SimpleNamespace(**{**fields, "variance_epsilon": 1e-6}), x, residual)


# -- mutation


@fault("rms_norm", "the residual of the next layer was the normed tensor", "mutation-writes", "mutation-aliases")
def norm_in_place(obj, x, residual=None):
    result = rms_norm(obj, x, residual)
    if residual is not None or result.dtype != x.dtype:
        return result
    return x.copy_(result)


@fault("rms_norm", "a fallback after a failed in-place kernel gave wrong numbers", "mutation-writes")
def undeclared_in_place_add(obj, x, residual=None):
    if residual is None:
        return rms_norm(obj, x)
    out, total = rms_norm(obj, x, residual)
    residual.copy_(total)
    return out, total


@fault("rotary_embedding", "inplace=False was ignored, and the key cache held rotated keys twice",
       "mutation-writes", "mutation-aliases", mutates=frozenset({"query", "key"}))  # fmt: skip
def always_in_place(obj, query, key, cos, sin, position_ids, rotary_interleaved=False, inplace=True):
    results = rotary_embedding(obj, query, key, cos, sin, position_ids, rotary_interleaved, inplace)
    return query.copy_(results[0]), key.copy_(results[1])


@fault("silu_and_mul", "another layer's weights changed: a kernel wrote past the end of its buffer", "mutation-writes")
def writes_past_the_end(obj, x):
    end = x.storage_offset() + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
    if x.numel():
        torch.as_strided(x, (4,), (1,), end).fill_(1.0)
    return silu_and_mul(obj, x)


@fault(
    "silu_and_mul", "all requests sampled the same tokens: the kernel seeded the global generator", "mutation-writes"
)
def seeds_the_global_generator(obj, x):
    torch.manual_seed(0)
    return silu_and_mul(obj, x)


_buffers: dict[Any, torch.Tensor] = {}


@fault("silu_and_mul", "a result kept for later held the values of the next layer", "mutation-kept",
       besides=("threads",))  # fmt: skip
def one_output_buffer(obj, x):
    out = silu_and_mul(obj, x)
    return _buffers.setdefault((out.shape, out.dtype), torch.empty_like(out)).copy_(out)


@fault("rms_norm", "one declared more than it does, and no failed call could be passed on", "mutation-writes",
       mutates=frozenset({"x", "residual"}))  # fmt: skip
def declares_writes_it_does_not_do(obj, x, residual=None):
    return rms_norm(obj, x, residual)


# -- limits


@fault("silu_and_mul", "a dtype was declared that the kernel has no instance for", "limits-accepts-float32",
       besides=("numbers-float32", "shapes-real-float32", "mutation-writes-float32", "mutation-aliases-float32",
                "mutation-kept-float32", "determinism-float32", "signature", "fields", "threads"),
       dtypes={"float32", "float16", "bfloat16"})  # fmt: skip
def declared_dtype_raises(obj, x):
    if x.dtype is torch.float32:
        raise RuntimeError('"silu_kernel" not implemented for Float')
    return silu_and_mul(obj, x)


@fault("silu_and_mul", "nothing ever ran it, and its tests were green: its list of dtypes was empty", "limits-accepts",
       dtypes=set())  # fmt: skip
def no_dtype_at_all(obj, x):
    return silu_and_mul(obj, x)


def _looks_at_a_missing_name(obj, x):
    return obj.width % 8 == 0


@fault("silu_and_mul", "a predicate raised for every model, so the kernel never ran", "limits-accepts",
       "limits-predicates", supports=_looks_at_a_missing_name)  # fmt: skip
def predicate_raises(obj, x):
    return silu_and_mul(obj, x)


@fault("rms_norm", "NotSupported came after the first kernel, and the fallback saw half a result",
       "limits-accepts",
       mutates=frozenset({"x", "residual"}))  # fmt: skip
def not_supported_too_late(obj, x, residual=None):
    if residual is None:
        return rms_norm(obj, x)
    out, total = rms_norm(obj, x, residual)
    residual.copy_(total)
    if x.shape[-1] % 8:
        raise NotSupported("hidden sizes that are multiples of 8")
    if out.dtype == x.dtype:
        out = x.copy_(out)
    return out, residual


# -- layer, repetition, shapes


@fault("rms_norm", "a vendor package read a private field that another framework's layer lacks", "fields")
def reads_a_private_field(obj, x, residual=None):
    return rms_norm(obj, x, residual) if getattr(obj, "hidden_size", None) != 0 else None


@fault("silu_and_mul", "two runs of one prompt differed at temperature 0", "determinism-float32",
       besides=("threads", "signature", "mutation-writes-float32"))  # fmt: skip
def another_result_every_time(obj, x):
    out = silu_and_mul(obj, x)
    return out * (1 + 2.0**-20 * torch.rand(())) if out.dtype is torch.float32 else out


@fault("rms_norm", "the next layer failed on a float32 input: the cast back was forgotten", "shapes-real")
def result_not_cast_back(obj, x, residual=None):
    result = rms_norm(obj, x, residual)
    return result.float() if residual is None else (result[0].float(), result[1])


@fault(
    "silu_and_mul", "the layer after it could not take a view: the result was the front of padded rows", "shapes-real"
)
def result_padded(obj, x):
    out = silu_and_mul(obj, x)
    return torch.nn.functional.pad(out, (0, 16))[..., : out.shape[-1]]


_scratch: dict[Any, torch.Tensor] = {}


@fault("silu_and_mul", "wrong tokens with two replicas in one process: both used one scratch buffer", "threads")
def scratch_shared_by_threads(obj, x):
    gate, up = x.chunk(2, dim=-1)
    scratch = _scratch.setdefault((gate.shape, gate.dtype), torch.empty_like(gate))
    scratch.copy_(silu(gate))
    if threading.current_thread() is not threading.main_thread():
        time.sleep(0.002)  # as long as a kernel takes
    return scratch * up


@fault("silu_and_mul", "an engine that runs the model in a thread got nothing: only the main thread was served",
       "threads")  # fmt: skip
def works_only_in_the_main_thread(obj, x):
    return silu_and_mul(obj, x) if threading.current_thread() is threading.main_thread() else None


# -- compile and graphs

_log = logging.getLogger("planted_faults")


@fault("silu_and_mul", "torch.compile died on a logger", "compile", besides=("shapes-fake",), traceable=True,
       reads=frozenset())  # fmt: skip
def logs_while_tracing(obj, x):
    _log.warning("silu_and_mul called with %s", x.shape)
    return silu_and_mul(obj, x)


@fault("silu_and_mul", "a compiled model did not start: the kernel's table was read inside of the trace", "processes-trace",
       traceable=True, reads=frozenset())  # fmt: skip
def loads_in_the_first_call(obj, x):
    global _table
    if _table is None:
        with open(__file__, "rb") as stream:
            _table = stream.read(1)
    return silu_and_mul(obj, x)


@fault("silu_and_mul", "the capture failed: the launch configuration was read from the device", "capture-host_reads",
       capture_safe=True)  # fmt: skip
def reads_back_to_the_host(obj, x):
    if x.numel() and x.abs().max().item() > 1e30:
        return silu_and_mul(obj, x.double()).to(x.dtype)
    return silu_and_mul(obj, x)


@fault("rms_norm", "a compiled graph saw a shape that the kernel did not return", "shapes-real",
       besides=("shapes-fake", "numbers-"),
       reads=frozenset({"weight", "variance_epsilon", "cast_x_before_out_mul", "cast_x_to_weight_dtype"}))  # fmt: skip
def flattens_three_dimensions(obj, x, residual=None):
    flat = None if residual is None else residual.reshape(-1, residual.shape[-1])
    return rms_norm(obj, x.reshape(-1, x.shape[-1]), flat)


# -- processes and signature


@fault("silu_and_mul", "a worker thread made at import was not there after a fork", "processes-fork")
def thread_made_at_import(obj, x):
    return processes.in_the_thread(functools.partial(silu_and_mul, obj, x))


@fault("silu_and_mul", "it worked in the main process only", "processes-spawn", "processes-fork")
def main_process_only(obj, x):
    processes.require_main_process()
    return silu_and_mul(obj, x)


@fault("rms_norm", "an upgrade of the framework passed residual by name", "signature")
def by_place_only(*args, **kwargs):
    return _by_place(*args, **kwargs)


def _by_place(obj, x, res=None):
    return rms_norm(obj, x, res)
