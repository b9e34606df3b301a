"""torch's profiler against copies of known size, pinned and pageable, through the same code as a profile."""

import json

import pytest

from offtune.worker.profiler_trace import PREFIX, ZERO, Taken, read_profile

pytestmark = pytest.mark.gpu

PINNED_BYTES, PAGEABLE_BYTES, BACK_BYTES = 64 * 2**20, 8 * 2**20, 16 * 2**20


@pytest.fixture(scope="module")
def look(tmp_path_factory):
    """One step: a pinned and a pageable copy to the device in the forward, one back in the backward."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function

    def tensor(size, **where):
        return torch.ones(size, dtype=torch.uint8, **where)

    pinned, pageable = tensor(PINNED_BYTES).pin_memory(), tensor(PAGEABLE_BYTES)
    there, back = tensor(BACK_BYTES, device="cuda"), tensor(BACK_BYTES).pin_memory()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        with record_function(ZERO):
            pass
        with record_function(f"{PREFIX}forward"):
            pinned.to("cuda", non_blocking=True)
            pageable.to("cuda")
            torch.cuda.synchronize()
        with record_function(f"{PREFIX}backward"):
            back.copy_(there, non_blocking=True)
            torch.cuda.synchronize()
    path = tmp_path_factory.mktemp("look") / "trace.json"
    profiler.export_chrome_trace(str(path))
    taken = Taken(rank=0, step_s=(1.0,), zero_s=0.0, has_device=True)
    return read_profile(json.loads(path.read_bytes()), taken)


def test_every_byte_is_counted_with_its_way_phase_and_memory(look):
    moved = {(one.phase, one.direction, one.memory): one.moved_bytes for one in look.copies}
    assert moved == {
        ("forward", "h2d", "pinned"): PINNED_BYTES,
        ("forward", "h2d", "pageable"): PAGEABLE_BYTES,
        ("backward", "d2h", "pinned"): BACK_BYTES,
    }


def test_a_pinned_copy_is_at_the_speed_of_a_link_and_nothing_hides_it(look):
    pinned = next(one for one in look.copies if one.memory == "pinned" and one.direction == "h2d")
    assert 1e9 < pinned.bytes_per_s < 1e12  # PCIe 3 at x4 to NVLink-C2C
    assert pinned.exposed_s == pytest.approx(pinned.copy_s)
