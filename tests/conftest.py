"""What all tests share: a small workload, specs for it, and a scratch folder of their own."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from postgres_server import postgres, postgres_server

from offtune import hardware, installed, ops, scratch
from offtune.models import PRESETS
from offtune.trial import TrialSpec, Workload

__all__ = ["postgres", "postgres_server"]  # fixtures, found here by pytest

os.environ.setdefault("COLUMNS", "100")

_KERNEL = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
copies_pages = pytest.mark.skipif(
    _KERNEL < (5, 14), reason="the kernel cannot copy pages on request (MADV_POPULATE_WRITE, Linux 5.14)"
)


def workload(**changes: Any) -> Workload:
    fields: dict[str, Any] = {
        "model_name": "llama-5m",
        "model_config": PRESETS["llama-5m"].config,
        "seq_len": 64,
        "global_batch": 4,
        "world_size": 1,
        "precision": "bf16",
        "optimizer": "adamw",
        "activation_checkpointing": False,
        "seed": 0,
    }
    return Workload(**{**fields, **changes})


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch of trials goes under the test's own folder, so that a leftover can be seen."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def make_spec(tmp_path: Path) -> Callable[..., TrialSpec]:
    """Builds a TrialSpec with a fresh directory; keyword arguments replace fields."""

    def make(ds_config: dict[str, Any], number: int = 0, **changes: Any) -> TrialSpec:
        fields: dict[str, Any] = {
            "study": "test",
            "number": number,
            "workload": workload(),
            "device": "cpu",
            "ds_config": ds_config,
            "warmup_steps": 1,
            "steps": 3,
            "deadline_s": 300.0,  # a cold start takes a minute where others use the machine
            "limit_bytes": 2 * 10**9,
            "host_limit_bytes": 10**10,
            "threads_per_rank": 1,
            "trial_dir": str(scratch.make_trial_dir("test", number)),
            "token": scratch.new_token(),
        }
        return TrialSpec(**{**fields, **changes})

    return make


@pytest.fixture
def fake_launch() -> Callable[..., Any]:
    """A launch function that starts `fake_rank.py` instead of the real rank."""
    from offtune.launch import ColdRanks

    program = (sys.executable, str(Path(__file__).parent / "fake_rank.py"))
    return lambda spec, spec_path: ColdRanks(spec, spec_path, program)


@pytest.fixture(scope="session", autouse=True)
def _ops_are_built(request: pytest.FixtureRequest) -> None:
    """Compile DeepSpeed's ops first where any test trains: that takes minutes, which no test waits for."""
    if any(item.get_closest_marker("train") for item in request.session.items):
        names = ops.needed_ops("cpu", "adamw", ("zero2", "zero3 opt=nvme"), nvme=True)
        ops.prepare(names, "cpu", print)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GPU tests skip themselves, with the reason."""
    reason = _no_cuda()
    for item in items:
        if item.get_closest_marker("gpu") and reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _no_cuda() -> str | None:
    if not hardware.cuda_gpus(hardware.detect()):
        return "no CUDA GPU is visible to the driver (NVML)"
    build = installed.torch_build()
    return None if build is not None and build.cuda else "torch is a build without CUDA"
