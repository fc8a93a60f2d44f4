# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that run real vLLM."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sample_wheels import install_plugin
from vllm_engine import PROMPTS, environment

#: Those that look at vLLM's layers only.
WITHOUT_MODEL = {"test_layers.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip with a reason where there is no vLLM or no model; the project's own test command provides both."""
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        reason = f"needs real vLLM: {error}"
    else:
        if "FL_TEST_MODEL" in os.environ:
            return
        reason = "needs FL_TEST_MODEL, the folder of SmolLM2-135M-Instruct (tools/fl.py model makes it)"
        mine = [item for item in mine if item.path.name not in WITHOUT_MODEL]
    for item in mine:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``plugin("my-chip")``: the folder where tests/plugins/my-chip is installed from its wheel."""
    into = tmp_path_factory.mktemp("plugins")
    return lambda name: install_plugin(name, into)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A folder for vLLM's cache, empty at first and shared by all tests."""
    return {"VLLM_CACHE_ROOT": str(tmp_path_factory.mktemp("vllm-cache"))}


@pytest.fixture(scope="session")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first two of the model's thirty layers: what it says is nonsense, and it compiles in seconds."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    whole = Path(os.environ["FL_TEST_MODEL"])
    folder = tmp_path_factory.mktemp("two-layers")
    for path in whole.iterdir():
        if path.suffix not in (".safetensors", ".index") and path.name != "config.json":
            shutil.copy(path, folder)
    config = json.loads((whole / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}), encoding="utf-8")
    tensors = {}
    for path in whole.glob("*.safetensors"):
        with safe_open(path, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118  (it is no mapping)
                layer = name.partition("layers.")[2].partition(".")[0]
                if not layer or int(layer) < 2:
                    tensors[name] = stored.get_tensor(name)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def two_layers_tokens(two_layers: Path) -> list[list[int]]:
    """What Hugging Face transformers generates with it, in a process of its own: the reference of those two layers."""
    program = (
        "import json, sys, torch, transformers\n"
        "model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)\n"
        "for prompt in json.loads(sys.argv[2]):\n"
        "    ids = torch.tensor([prompt])\n"
        "    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=32)\n"
        "    print('TOKENS', json.dumps(out[0, len(prompt):].tolist()))\n"
    )
    command = [sys.executable, "-c", program, str(two_layers), json.dumps(PROMPTS[:2])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment({}))
    return [json.loads(line.removeprefix("TOKENS")) for line in done.stdout.splitlines() if line.startswith("TOKENS")]
