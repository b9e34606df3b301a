"""Seconds that one rank needs for volumes of work on a machine where others work at the same time.

Covered: matrix products and element-wise work, host launches, copies, collectives, CPU Adam, storage; shared
links, unbound cores, collectives over the copies' link. Not covered: what runs beside what (`time_model`).
Constants that no profile holds are below, each with what fixed it.
"""

from __future__ import annotations

from offtune.errors import UsageError
from offtune.hardware_profile import HardwareProfile
from offtune.step_work import StepWork

# Tokens at which matrix products reach half of their best rate: micro-batch 1 against 4 on one A100.
_HALF_RATE_TOKENS = 470
# Times the scores of eager attention cross device memory: product, mask, softmax, dropout, product.
_SCORE_TOUCHES = 6.3
_BACKWARD_SCORES = 2
# Times element-wise work of a layer (norms, activation, residuals; the wider MLP counted in) crosses a
# tensor of the model's width. Fitted to runs of 0.4B to 30B without offload (vTrain, MPT-bench).
_STATE_TOUCHES = 85
_BACKWARD_STATES = 2
# The backward of an attention kernel makes the scores again: five products for two.
_BACKWARD_ATTENTION = 2.5
# Share of a layer's launch time that stages below 3 need, as nothing is fetched or released: vTrain, 0.4B.
_LAUNCH_SHARE_BELOW_3 = 0.37
# One hook, bucket or tile costs the host this share of a layer's launch. On the CPU accelerator, 5 M
# parameters: 8 micro-steps for one cost 11, 23 and 38 ms each at stage 1, 2 and 3, for 0, 39 and 78 of them.
_CALL_SHARE = 0.2
# Copies beside collectives on one link: 1.25 to 1.95 times the sum of both (Mist, A10G without NVLink); four
# H100 without NVLink show 1.55 (offload-nvme-cxl: what a micro-step takes beyond its collectives).
_COPY_BESIDE_COLLECTIVE = 1.55
# Ranks whose threads run on all cores get in each other's way: 7B on 1, 2 and 4 ranks of one node (A100).
_UNBOUND_SHARE, _UNBOUND_ONE_RANK = 0.58, 0.35
# A GPU Adam step reads and writes master and both moments, reads the gradient and writes the 16-bit copy.
_DEVICE_ADAM_BYTES = 34


class Rates:
    """What `hardware` does for one rank of `work`. Raises UsageError where it cannot do the precision."""

    def __init__(self, work: StepWork, hardware: HardwareProfile) -> None:
        self.work, self.hardware = work, hardware
        self.on_cpu = hardware.device == "cpu"
        peak = hardware.matrix_flops_per_s.get(work.precision, 0.0)
        if not peak:
            able = [name for name, rate in hardware.matrix_flops_per_s.items() if rate]
            raise UsageError(
                f"{hardware.name} has no matrix rate for {work.precision}.",
                f"Use --precision {' or '.join(able)}, or another profile.",
            )
        saturated = 1.0 if self.on_cpu else work.tokens / (work.tokens + _HALF_RATE_TOKENS)
        self._flops_per_s = peak * hardware.matrix_efficiency * saturated
        self._attention_flops_per_s = peak * hardware.attention_efficiency
        self._link_share = hardware.shared_link_bytes_per_s / max(1, work.ranks_per_node)
        # A rank alone, or ranks bound to their cores, get all of the host that they can use.
        self._host_share = (
            1.0 if work.cores_bound else _UNBOUND_SHARE + _UNBOUND_ONE_RANK / work.ranks_per_node
        )

    def compute(self, flops: float, forwards: float, backwards: float) -> float:
        """Matrix products of `flops`, and what goes with so many forwards and backwards of the layers."""
        work = self.work
        scores = _SCORE_TOUCHES * work.score_bytes * (forwards + _BACKWARD_SCORES * backwards)
        states = _STATE_TOUCHES * work.state_bytes * (forwards + _BACKWARD_STATES * backwards)
        attention = work.attention_flops * (forwards + _BACKWARD_ATTENTION * backwards)
        # The measured rate of a CPU has element-wise work in it: caches hold what a GPU streams.
        touched = 0.0 if self.on_cpu else scores + states
        return (
            flops / self._flops_per_s
            + _over(attention, self._attention_flops_per_s)
            + _over(touched, self.hardware.device_bytes_per_s)
        )

    def launch(self, passes: float) -> float:
        """Host time to issue the layers' kernels so many times."""
        hooked = self.work.zero_stage == 3 or self.on_cpu
        share = 1.0 if hooked else _LAUNCH_SHARE_BELOW_3
        return passes * share * self.work.layers * self.hardware.layer_launch_s

    def calls(self, count: float) -> float:
        """What DeepSpeed's Python costs beside the layers; on a GPU it is in the launch time already."""
        return _CALL_SHARE * count * self.hardware.layer_launch_s if self.on_cpu else 0.0

    def collective(self, size: float) -> float:
        """Ring: inside a node each rank moves (n-1)/n of it; between nodes as much enters each node."""
        work = self.work
        if not size or work.ranks == 1:
            return 0.0
        moved = size * (work.ranks - 1) / work.ranks
        inside = moved / self.hardware.collective_bytes_per_s
        if work.ranks == work.ranks_per_node:
            return inside
        return max(inside, moved / self.hardware.fabric_bytes_per_s)

    def copies(self, d2h: float, h2d: float) -> float:
        """Pinned copies of one stream, one after the other."""
        shared = self.hardware.collectives_over_link and self.work.ranks > 1
        slower = _COPY_BESIDE_COLLECTIVE if shared else 1.0
        out = min(self.hardware.d2h_bytes_per_s, self._link_share)
        back = min(self.hardware.h2d_bytes_per_s, self._link_share)
        return slower * (_over(d2h, out) + _over(h2d, back))

    def pageable(self, d2h: float, h2d: float) -> float:
        """The host copies every byte into or out of a pinned buffer, with the cores it has."""
        out = min(self.hardware.pageable_d2h_bytes_per_s * self._host_share, self._link_share)
        back = min(self.hardware.pageable_h2d_bytes_per_s * self._host_share, self._link_share)
        return _over(d2h, out) + _over(h2d, back)

    def host_copy(self, size: float) -> float:
        return _over(size, self.hardware.host_copy_bytes_per_s * self._host_share)

    def cpu_adam(self, numel: float) -> float:
        """All ranks of a node share its memory, whose rate bounds the update."""
        node = numel * self.work.ranks_per_node
        return _over(node, self.hardware.adam_elements_per_s * self._host_share)

    def device_adam(self, numel: float) -> float:
        if self.on_cpu:
            return self.cpu_adam(numel)
        return _over(numel * _DEVICE_ADAM_BYTES, self.hardware.device_bytes_per_s)

    def nvme(self, read: float, written: float) -> float:
        """Reads, then writes: the swapper's default is one sub-group after the other."""
        node = self.work.ranks_per_node
        reading = _over(node * read, self.hardware.nvme_read_bytes_per_s)
        return reading + _over(node * written, self.hardware.nvme_write_bytes_per_s)


def _over(amount: float, rate: float) -> float:
    """Seconds; nothing takes none, whatever the rate, and a rate of zero is "not there"."""
    if not amount:
        return 0.0
    return amount / rate if rate else float("inf")
