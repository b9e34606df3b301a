"""The recorder on CUDA: events on the host's clock, the allocator's peaks by phase, NVML or its reason."""

import time

import pytest
import torch
from test_cuda import gpu, make_trial, ready_ops, runner  # noqa: F401 fixtures

from offtune import hardware
from offtune.recording import read_timelines
from offtune.trial import Status
from offtune.worker.allocator import AllocatorMemory
from offtune.worker.phases import PhaseClock

pytestmark = [pytest.mark.gpu, pytest.mark.train]

MIB = 2**20
# Cycles of the device's clock, some 0.1 s at 1 to 2 GHz; the host has issued them in microseconds.
_CYCLES = 10**8


def test_events_tell_when_the_device_worked_on_the_hosts_clock():
    torch.cuda.synchronize()
    clock, before_s = PhaseClock("cuda"), time.perf_counter()
    for name in ("forward", "backward"):
        with clock.phase(name):
            torch.cuda._sleep(_CYCLES)
    issued_s = time.perf_counter()
    torch.cuda.synchronize()
    after_s = time.perf_counter()
    forward, backward = clock.next_step(after_s - before_s)
    assert before_s - 0.001 <= forward.start_s < forward.end_s <= backward.start_s + 0.001
    assert backward.end_s <= after_s + 0.001
    lengths = [one.end_s - one.start_s for one in (forward, backward)]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.2)
    assert sum(lengths) == pytest.approx(after_s - before_s, rel=0.1)
    assert backward.end_s > issued_s, "the host runs ahead: its own clock would have said nothing took time"


def test_the_allocators_peak_between_two_looks_is_exact():
    allocator = AllocatorMemory()
    allocator.peaks()
    level = torch.cuda.memory_allocated()
    block = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    del block
    assert torch.cuda.memory_allocated() == level
    assert allocator.peaks()[0] == level + 64 * MIB
    assert allocator.peaks()[0] == level
    assert allocator.allocated_peak >= level + 64 * MIB


def test_a_trial_on_the_card_is_recorded_by_phase(runner, make_trial):  # noqa: F811 fixtures
    spec = make_trial("zero3 opt=cpu")
    result = runner(spec)
    assert result.status is Status.OK, (result.reason, result.log_tail)
    analysis = result.analysis
    assert analysis is not None
    assert sum(phase.seconds for phase in analysis.phases) == pytest.approx(analysis.step_s, rel=0.03)
    assert {part.name for part in analysis.parts} >= {"update.cpu_optimizer", "update.copy_back"}
    peaks = [phase.peak("allocated_bytes") for phase in analysis.phases[:3]]
    assert max(peaks) <= 1.0001 * result.memory.allocated_bytes  # rounded
    assert min(peaks) > 10**8
    (timeline,) = read_timelines(spec.trial_dir)
    for key in ("h2d_bytes_per_s", "d2h_bytes_per_s", "gpu_busy_share", "device_used_bytes"):
        assert (timeline.find(key) is None) == (key in timeline.reasons), key


def test_the_drivers_utilisation_is_a_share_or_unknown(gpu):  # noqa: F811 fixtures
    busy = hardware.gpu_busy_share(gpu)
    assert busy is None or 0.0 <= busy <= 1.0
