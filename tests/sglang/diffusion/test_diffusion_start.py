# SPDX-License-Identifier: Apache-2.0
"""Hooks, required initialisation and the check of a worker in SGLang Diffusion: its rules, against real SGLang."""

from __future__ import annotations

import importlib
import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("diffusion_plugins", exc_type=ImportError)

from diffusion_case import OVERRIDE, Install, facts, layers, started, vendor
from sglang.multimodal_gen.runtime import platforms
from sglang.multimodal_gen.runtime.platforms import cpu, plugins

import sglang_fl.diffusion.backend as backend
import sglang_fl.diffusion.worker as worker
from fl_dispatch import FrozenSelectionError, SeamError
from sglang_fl.diffusion import register_hooks
from sglang_fl.diffusion.choice import ENTRY_POINT
from sglang_fl.diffusion.platform import DispatchPlatform
from sglang_fl.layers import LayerBinder
from sglang_fl.seam import find_seam

pytestmark = pytest.mark.usefixtures("fresh")


#: A plug-in that has its hooks applied itself, instead of leaving that to SGLang.
APPLIES = """
from sglang.multimodal_gen.runtime.platforms.plugins import HookRegistry, HookType

CALLS = []
TARGETS = {
    "dispatch_forward": "sglang.multimodal_gen.runtime.layers.custom_op.CustomOp",
    "init_device_and_model": "sglang.multimodal_gen.runtime.managers.gpu_worker.GPUWorker",
}


def register():
    for name, owner in TARGETS.items():
        def around(original, *args, name=name):
            CALLS.append(name)
            return original(*args)

        HookRegistry.register(f"{owner}.{name}", around, HookType.AROUND)
    HookRegistry.apply_hooks()
"""


def loaded() -> set[str]:
    return set(plugins._discover())


def test_hooks_of_a_platforms_distribution_are_skipped_unless_it_is_selected(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why our operators reach a built-in platform by selection alone, and not by hooks."""
    assert ENTRY_POINT not in loaded()
    monkeypatch.setattr(platforms, "_current_platform", None)
    monkeypatch.setenv(OVERRIDE, ENTRY_POINT)
    assert ENTRY_POINT in loaded()


def test_hooks_are_registered_with_diffusions_registry_in_a_worker_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    monkeypatch.setenv(OVERRIDE, ENTRY_POINT)
    register_hooks()
    assert plugins.HookRegistry._hooks == {}
    monkeypatch.setattr(backend, "_started", started())
    before = {target: len(hooks) for target, hooks in HookRegistry._hooks.items()}
    register_hooks()
    assert worker.TARGET in plugins.HookRegistry._hooks
    assert {target: len(hooks) for target, hooks in HookRegistry._hooks.items()} == before


def test_registration_resolves_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDE, ENTRY_POINT)
    monkeypatch.setattr(backend, "_started", started())
    monkeypatch.delitem(sys.modules, "sglang.multimodal_gen.runtime.managers.gpu_worker", raising=False)
    register_hooks()
    assert "sglang.multimodal_gen.runtime.managers.gpu_worker" not in sys.modules


def test_a_distribution_without_a_platform_brings_our_hooks_to_sglangs_own_platform(install: Install) -> None:
    install("my_ops", "", "[sglang.multimodal_gen.plugins]", "my_ops = sglang_fl.diffusion:register_hooks")
    plugins.load_plugins()
    assert type(platforms.current_platform) is cpu.CpuPlatform
    hooks = plugins.HookRegistry._hooks
    assert {"sglang.multimodal_gen.runtime.layers.custom_op.CustomOp.dispatch_forward", worker.TARGET} <= set(hooks)
    register_hooks()
    assert {len(registered) for registered in hooks.values()} == {1}


@pytest.mark.parametrize(
    ("variable", "value", "refused"),
    [
        ("SGLANG_FL_STRICT", "perhaps", "SGLANG_FL_STRICT"),
        ("SGLANG_FL_PER_OP", "rms_norm=impl:vendor.nowhere|reference", "no implementation of operator 'rms_norm' has"),
    ],
)
def test_on_sglangs_own_platform_a_wrong_setting_ends_the_process_as_sglang_would_go_on(
    install: Install, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, refused: str
) -> None:
    install("my_ops", "", "[sglang.multimodal_gen.plugins]", "my_ops = sglang_fl.diffusion:register_hooks")
    monkeypatch.setenv(OVERRIDE, "cpu")
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit, match=rf"sglang-fl refuses to start: .*{refused}"):
        plugins.load_plugins()


def test_a_plug_in_of_ours_that_fails_aborts_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang takes the hooks of the selected platform's distribution for a part of it."""
    monkeypatch.setenv(OVERRIDE, ENTRY_POINT)

    def fails() -> None:
        raise SeamError("gone")

    monkeypatch.setattr(worker, "register", fails)
    with pytest.raises(SeamError, match="gone"):
        plugins.load_plugins()


def test_an_allow_list_without_us_leaves_the_operators_of_a_vendors_platform_in_effect_and_says_so(
    install: Install, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vendor(install, "acme", "cpu")
    monkeypatch.setenv("SGLANG_FL_PREFER", "reference")
    monkeypatch.setenv("SGLANG_PLUGINS", "theirs, another")
    assert ENTRY_POINT not in loaded()
    assert type(platforms.current_platform) is DispatchPlatform
    with caplog.at_level(logging.WARNING, "sglang_fl"):
        platforms.initialize_current_platform()
    assert "SGLANG_PLUGINS=theirs, another leaves our hooks out: the operators are in effect" in caplog.text
    layer = layers().SiluAndMul()
    layer(torch.ones(1, 8))
    assert layer._forward_method.__func__.dispatched_by_fl
    assert worker._report is not None
    assert [row["operator"] for row in worker._report.rows()].count("silu_and_mul") == 1


def test_an_allow_list_without_us_aborts_the_start_where_our_hooks_bring_the_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(OVERRIDE, ENTRY_POINT)
    monkeypatch.setenv("SGLANG_PLUGINS", "theirs")
    with pytest.raises(
        backend.BackendError, match=r"SGLANG_PLUGINS=theirs leaves them out.*; add sglang_fl to SGLANG_PLUGINS"
    ):
        platforms.initialize_current_platform()


def test_on_sglangs_own_platform_given_out_by_us_our_hooks_bring_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDE, ENTRY_POINT)
    platforms.initialize_current_platform()
    plugins.load_plugins()
    assert "sglang.multimodal_gen.runtime.layers.custom_op.CustomOp.dispatch_forward" in plugins.HookRegistry._hooks


# -- initialisation


def test_a_required_initialisation_that_fails_aborts_the_start_says_what_and_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[int] = []

    def acme_setup() -> None:
        tries.append(1)
        raise OSError("driver 7 is too old")

    monkeypatch.setattr(platforms, "_current_platform", DispatchPlatform(facts(setup=acme_setup)))
    with pytest.raises(backend.BackendError) as caught:
        platforms.initialize_current_platform()
    text = str(caught.value)
    assert "the diffusion platform for acme_chip cannot start" in text
    assert "acme_setup) failed: OSError: driver 7 is too old" in text
    assert "SGLANG_FL_DENY_VENDORS leaves the vendor out" in text
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(RuntimeError, match="previously failed: sglang-fl: the diffusion platform for acme_chip"):
        platforms.initialize_current_platform()
    assert tries == [1]
    assert backend.started() is None


def test_a_layer_class_that_sglang_moved_aborts_the_start_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sglang.multimodal_gen.runtime.layers.activation as module

    monkeypatch.delattr(module, "GeluAndMul")
    monkeypatch.setattr(platforms, "_current_platform", DispatchPlatform(facts()))
    with pytest.raises(
        backend.BackendError, match=r"registering our forwards failed: SeamError: SGLang .* has no .*GeluAndMul"
    ):
        platforms.initialize_current_platform()


def test_initialisation_sets_the_device_up_and_registers_under_the_platforms_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = layers()  # imported before there is a platform that nothing else knows
    calls: list[int] = []
    one = DispatchPlatform(facts(setup=lambda: calls.append(1), native_forward="acme_forward"))
    monkeypatch.setattr(platforms, "_current_platform", one)
    platforms.initialize_current_platform()
    platforms.initialize_current_platform()
    assert calls == [1]
    from sglang.multimodal_gen.runtime.layers.custom_op import CustomOp

    registered = CustomOp._oot_forward_registry["acme_forward"]
    assert {known.SiluAndMul, known.GeluAndMul, known.RMSNorm, known.RotaryEmbedding} <= set(registered)
    found = backend.started()
    assert found is not None
    assert found.device_type == "acme_chip"
    assert found.seam.endswith(".CustomOp.register_oot_forward(platform_key='acme_forward')")


def test_the_vendors_operators_are_imported_after_its_setup(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "order = []\ndef register(registry): order.append('operators')\ndef setup(): order.append('setup')\n"
    install("acme_ops", code, "[fl_dispatch.vendors]", "acme_ops = acme_ops:register")

    def setup() -> None:
        importlib.import_module("acme_ops").setup()

    layers()
    monkeypatch.setattr(platforms, "_current_platform", DispatchPlatform(facts(setup=setup)))
    platforms.initialize_current_platform()
    assert importlib.import_module("acme_ops").order == ["setup", "operators"]


def test_the_platform_for_language_models_stays_out_of_diffusions_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They import the model runner, which initialises it, and never load the hooks that it asks for elsewhere."""
    import sglang_fl.platform as srt

    calls: list[int] = []
    monkeypatch.setattr(srt, "installed", lambda: None)
    srt.DispatchPlatform(facts(setup=lambda: calls.append(1))).init_backend()
    assert calls == []


# -- once the pipeline is there


def pipeline(*parts: Any) -> Any:
    return SimpleNamespace(modules={"transformer": torch.nn.ModuleList(parts), "tokenizer": object()})


def gpu_worker(pipe: Any, **arguments: Any) -> Any:
    return SimpleNamespace(pipeline=pipe, server_args=SimpleNamespace(**arguments), rank=1)


def test_every_layer_of_every_component_is_settled_and_reported(
    ours: backend.Started, caplog: pytest.LogCaptureFixture
) -> None:
    known = layers()
    parts = [known.SiluAndMul(), known.RMSNorm(8), known.RMSNorm(8), known.FP32LayerNorm(8)]
    ours.forwards._manager = worker.default_manager()
    with caplog.at_level(logging.INFO, "sglang_fl"):
        worker.after_init(None, gpu_worker(pipeline(*parts)))
    assert "diffusion worker rank 1, cpu" in caplog.text
    assert worker._report is not None
    report = worker._report.as_dict()
    assert {(row["operator"], row["layers"]) for row in report["operators"]} >= {("silu_and_mul", 1), ("rms_norm", 2)}
    assert ("FP32LayerNorm", 1) in {(row["layer_class"], row["layers"]) for row in report["left_to_framework"]}


def test_a_layer_that_runs_what_we_did_not_register_stops_the_start(ours: backend.Started) -> None:
    layer = layers().SiluAndMul()

    def theirs(x: Any) -> Any:
        return x

    layer._forward_method = theirs
    with pytest.raises(SeamError, match=r"SiluAndMul runs .*theirs.* and not what it got from us \(1 layers\)"):
        worker.after_init(None, gpu_worker(pipeline(layer)))


def test_a_layer_whose_own_method_another_plug_in_answers_with_stops_the_start(
    ours: backend.Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = layers()
    monkeypatch.setattr(known.CustomOp, "dispatch_forward", lambda layer: layer.forward_native)
    with pytest.raises(SeamError, match=r"SiluAndMul runs 'SiluAndMul.forward_native' and not what it got from us"):
        worker.after_init(None, gpu_worker(pipeline(known.SiluAndMul())))


def test_a_text_encoders_layer_that_does_not_ask_us_stops_the_start(
    ours: backend.Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.layers.activation import SiluAndMul

    monkeypatch.setattr(worker, "_binder", LayerBinder(worker.default_manager(), ours.config, find_seam()))
    with pytest.raises(SeamError, match=r"SiluAndMul was never asked about at sglang\..*_resolve_forward_method"):
        worker.after_init(None, gpu_worker(pipeline(SiluAndMul())))


def test_our_hook_that_is_not_in_effect_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where SGLang moved the place, or could not apply it: there the layers run SGLang's own methods."""
    monkeypatch.setenv(OVERRIDE, ENTRY_POINT)
    platforms.initialize_current_platform()
    plugins.load_plugins()
    with pytest.raises(SeamError, match=r"SiluAndMul runs .*forward_.* and not what it got from us .*dispatch_forward"):
        worker.after_init(None, gpu_worker(pipeline(layers().SiluAndMul())))


def test_hooks_that_another_plug_in_had_applied_before_ours_do_not_keep_ours_out(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERRIDE, ENTRY_POINT)
    monkeypatch.setenv("SGLANG_FL_PREFER", "reference")
    from sglang.multimodal_gen.runtime.managers.gpu_worker import GPUWorker

    install("a_first", APPLIES, "[sglang.multimodal_gen.plugins]", "a_first = a_first:register")
    monkeypatch.setattr(GPUWorker, "init_device_and_model", lambda self: None)
    known = layers()
    monkeypatch.setattr(known.CustomOp, "dispatch_forward", known.CustomOp.dispatch_forward)
    platforms.initialize_current_platform()
    plugins.apply_plugin_hooks()
    layer = known.SiluAndMul()
    GPUWorker.init_device_and_model(gpu_worker(pipeline(layer)))
    import a_first  # type: ignore[import-not-found]

    assert set(a_first.CALLS) == {"dispatch_forward", "init_device_and_model"}
    assert layer._forward_method.__func__.dispatched_by_fl
    assert worker._report is not None


@pytest.mark.parametrize(("device", "captured"), [("acme_chip", True), ("cpu", False)])
@pytest.mark.parametrize("where", ["enable_breakable_cuda_graph", "enable_action_cuda_graph"])
def test_captured_graphs_get_only_what_may_be_captured_and_the_selection_stays(
    ours: backend.Started, device: str, captured: bool, where: str
) -> None:
    manager = worker.default_manager()
    ours.device_type = device
    arguments = {
        "enable_breakable_cuda_graph": where == "enable_breakable_cuda_graph",
        "pipeline_config": SimpleNamespace(enable_action_cuda_graph=where == "enable_action_cuda_graph"),
    }
    worker.after_init(None, gpu_worker(pipeline(), **arguments))
    assert "in device graphs" in str(manager.select("silu_and_mul").facts) or not captured
    assert worker._report is not None
    assert worker._report.as_dict()["graphs"] == {"captured_by": where if captured else None}
    if captured:
        with pytest.raises(FrozenSelectionError, match=rf"a graph that SGLang captures \({where}\)"):
            manager.configure(device_type="cpu")
    else:
        manager.configure(device_type="cpu")


def test_torch_compile_leaves_every_layer_to_sglang_says_so_and_strict_refuses_it(
    ours: backend.Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    layer = layers().SiluAndMul()
    with caplog.at_level(logging.WARNING, "sglang_fl"):
        worker.after_init(None, gpu_worker(pipeline(layer), enable_torch_compile=True))
    assert "--enable-torch-compile compiles SGLang's own methods: every layer stays with SGLang" in caplog.text
    assert layer._forward_method == layer.forward_native
    # Nor do text encoders' layers, which decide when they are called first.
    assert worker._around_seam(lambda layer: "SGLang's own", layers().SiluAndMul()) == "SGLang's own"
    strict = started({"STRICT": "1", "PREFER": "reference"})
    monkeypatch.setattr(backend, "_started", strict)
    with pytest.raises(SeamError, match="strict, and --enable-torch-compile"):
        worker.after_init(None, gpu_worker(pipeline(layers().SiluAndMul()), enable_torch_compile=True))
