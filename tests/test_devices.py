"""No two trials on one device: names, and which GPUs are left."""

from dataclasses import replace
from typing import Any

import pytest

from offtune.devices import device_names, free_gpus, visible_gpus
from offtune.hardware import Gpu, Machine


def machine(count: int = 4, **more: Any) -> Machine:
    gpus = tuple(Gpu(index=i, name="H200", memory_bytes=10**11, uuid=f"GPU-{i}") for i in range(count))
    fields: dict[str, Any] = {
        "cpu_model": "c", "cores": 8, "memory_bytes": 10**11, "gpus": gpus, "driver_version": "1",
        "hostname": "host", "boot_id": "b",
    }  # fmt: skip
    return Machine(**{**fields, **more})


def test_processors_are_one_device_a_host():
    here = machine()
    (name,) = device_names(here, "cpu", ())
    assert free_gpus(here, "cpu", (), {name}) is None
    assert free_gpus(here, "cpu", (), {"GPU-0"}) == ()
    assert free_gpus(replace(here, hostname="other"), "cpu", (), {name}) == ()


@pytest.mark.parametrize(
    ("wanted", "taken", "given"),
    [
        ((0,), set(), (0,)),
        ((0,), {"GPU-0"}, (1,)),
        ((2, 3), {"GPU-0"}, (2, 3)),
        ((2, 3), {"GPU-2"}, (3, 0)),
        ((0, 1), {"GPU-0", "GPU-1", "GPU-2"}, None),
        ((0, 1, 2, 3), {"GPU-3"}, None),
    ],
)
def test_free_gpus_are_as_many_as_wanted_these_first(monkeypatch, wanted, taken, given):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert free_gpus(machine(), "cuda", wanted, taken) == given


def test_gpus_of_another_kind_or_hidden_ones_are_not_taken(monkeypatch):
    here = machine()
    mixed = replace(here, gpus=(*here.gpus[:1], replace(here.gpus[1], name="T4"), *here.gpus[2:]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,3")
    assert free_gpus(mixed, "cuda", (0,), {"GPU-0"}) == (3,)
    assert device_names(mixed, "cuda", (3, 0)) == ("GPU-0", "GPU-3")


def test_a_worker_elsewhere_takes_the_gpus_it_sees(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert visible_gpus(machine(), (0, 1)) == (2, 3)
    assert visible_gpus(machine(), (3,)) == (3,)
    assert visible_gpus(machine(0), ()) == ()
