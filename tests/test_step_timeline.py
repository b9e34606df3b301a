"""The predicted timeline: without gaps, as long as the step, carrying every byte, and bounded."""

from itertools import pairwise

import pytest
from cost_cases import P, ds_config, offloaded, work

from offtune import hardware_profile
from offtune.step_timeline import predicted_timeline, step_volumes
from offtune.time_model import predict_time

A100 = hardware_profile.load("a100-80gb")


def timeline(config, limit=2000, version="0.19.8"):
    done = work(config, ranks=2, version=version)
    prediction = predict_time(done, A100)
    return done, prediction, predicted_timeline(done, prediction, limit)


def total(stretches, name):
    return sum(getattr(stretch, name) * (stretch.end_s - stretch.start_s) for stretch in stretches)


@pytest.mark.parametrize("steps", [1, 3, 5000])
def test_it_has_no_gaps_and_ends_with_the_step(steps):
    _, prediction, found = timeline(ds_config(steps=steps, **offloaded()))
    assert found[0].start_s == 0 and len(found) <= 2000
    assert all(later.start_s == earlier.end_s for earlier, later in pairwise(found))
    assert found[-1].end_s == pytest.approx(prediction.step_s)
    assert sum(stretch.micro_steps for stretch in found if stretch.phase == "forward") == steps


@pytest.mark.parametrize("limit", [5, 2000])
def test_it_carries_every_byte_however_coarse(limit):
    done, _, found = timeline(ds_config(steps=6, **offloaded()), limit)
    assert total(found, "d2h_bytes_per_s") == pytest.approx(6 * done.micro_d2h_bytes + 4 * done.last_numel)
    assert total(found, "h2d_bytes_per_s") == pytest.approx(6 * done.micro_h2d_bytes + done.update_h2d_bytes)


def test_phases_come_in_the_order_of_the_engine():
    _, _, found = timeline(ds_config(steps=2, **offloaded()))
    assert [stretch.phase for stretch in found] == ["forward", "backward", "forward", "backward", "update"]


def test_an_old_release_sends_the_last_gradient_in_16_bit():
    done, _, found = timeline(ds_config(**offloaded()), version="0.13.3")
    assert total(found, "d2h_bytes_per_s") == pytest.approx(done.micro_d2h_bytes + 2 * done.last_numel)


def test_nvme_traffic_is_in_the_phase_that_makes_it():
    _, _, found = timeline(ds_config(**offloaded("nvme")))
    by_phase = {stretch.phase: stretch for stretch in found}
    assert total([by_phase["update"]], "nvme_read_bytes_per_s") == pytest.approx(16 * P / 2, rel=1e-3)
    assert by_phase["forward"].nvme_write_bytes_per_s == 0 < by_phase["backward"].nvme_write_bytes_per_s


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("device", ["cpu", "nvme"])
def test_volumes_of_the_phases_are_what_the_timeline_carries(steps, device):
    done, _, found = timeline(ds_config(steps=steps, **offloaded(device)))
    paths = {"d2h": "d2h_bytes_per_s", "h2d": "h2d_bytes_per_s", "read": "nvme_read_bytes_per_s",
             "written": "nvme_write_bytes_per_s", "collective": "collective_bytes_per_s"}  # fmt: skip
    for phase, volume in step_volumes(done).items():
        inside = [stretch for stretch in found if stretch.phase == phase]
        for name, rate in paths.items():
            assert getattr(volume, name) == pytest.approx(total(inside, rate)), (phase, name)
