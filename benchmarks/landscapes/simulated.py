"""Simulated machines: throughput and memory of a dense decoder under offload, from a model of its own.

Nothing here is measured, and nothing is shared with offtune's predictor: other constants (each named below is
assumed, in the range of published machines), another form (efficiency that saturates with the micro-batch,
buckets with an optimum, contention between pinned memory and NVMe), 4 % noise. A strategy that trusts its
predictions as they are loses here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from landscapes.landscape import Landscape, Truth

from offtune import hardware_profile
from offtune.guesses import Guesses
from offtune.knobs import Placement, parse_placement
from offtune.model_shape import shape_of
from offtune.models import resolve_model
from offtune.predict import Bounds, Predictor
from offtune.space import load_space
from offtune.trial import Facts, Point, Workload

NOISE_SHARE = 0.04
_SEQ_LEN = 1024
_SAMPLES_PER_RANK = 8
# A trial is two warm-up steps and five measured ones after so long a start.
_START_S = 20.0
_STEPS = 7
_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A simulated node: rates per rank in bytes, elements or FLOPs per second, sizes in bytes."""

    ranks: int
    budget_bytes: float
    host_bytes: float
    flops_per_s: float
    collective_bytes_per_s: float
    pinned_bytes_per_s: float
    pageable_bytes_per_s: float
    cpu_adam_elements_per_s: float
    gpu_adam_elements_per_s: float
    nvme_bytes_per_s: float
    context_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A dense decoder: parameters, layers, hidden size, vocabulary."""

    parameters: float
    layers: int
    hidden: int
    vocabulary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """One model on one machine; `truth` is the whole of it."""

    machine: Machine
    model: Model

    def truth(self, point: Point) -> Truth:
        """Throughput and memory without noise."""
        where = parse_placement(point["placement"])
        step_s = self._step_s(point, where)
        share = self._device_bytes(point, where) / self.machine.budget_bytes
        rate = _SAMPLES_PER_RANK * self.machine.ranks / step_s
        host = self._host_bytes(where) / self.machine.host_bytes
        return Truth(
            samples_per_s=rate, device_share=share, host_share=host,
            seconds=_START_S + (_STEPS * step_s if share <= 1.0 else step_s), out_of_memory=share > 1.0,
        )  # fmt: skip

    def measure(self, point: Point, draw: Random) -> Truth:
        """One trial: both figures with their noise."""
        true = self.truth(point)
        speed = true.samples_per_s * math.exp(draw.gauss(0.0, NOISE_SHARE))
        share = true.device_share * math.exp(draw.gauss(0.0, 0.003))
        return replace(true, samples_per_s=speed, device_share=share, out_of_memory=share > 1.0,
                       noise_share=NOISE_SHARE)  # fmt: skip

    def _device_bytes(self, point: Point, where: Placement) -> float:
        count, ranks = self.model.parameters, self.machine.ranks
        share = count / ranks
        weights = 2 * (share if where.stage == 3 else count) * (0.06 if where.param != "none" else 1.0)
        offloaded = where.optimizer != "none"
        # Stages 1 and 2 accumulate whole gradients on the device before the copy; stage 3 its own part.
        whole = 1.7 * count if where.stage < 3 and offloaded else 2.0 * (count if where.stage == 1 else share)
        gradients = whole * (0.4 if where.stage == 3 and offloaded else 1.0)
        resident = 1.0 if where.optimizer == "none" else point.get("resident_sixteenths", 0) / 16
        states = 12.6 * share * resident + (0.9 * _GB if 0 < resident < 1 else 0.0)
        bucket = point.get("reduce_bucket_size", 2**26)
        buffers = bucket * (4.5 if point.get("overlap_comm") else 2.5)
        if where.stage == 3:
            live = min(count, point.get("max_live_parameters", 2**30), 4.2 * count / self.model.layers)
            kept = min(0.1 * count, 3.0 * point.get("param_persistence_threshold", 0))
            buffers = buffers * 0.6 + 2 * (live + point.get("prefetch_bucket_size", 0) + kept)
        return self.machine.context_bytes + weights + gradients + states + buffers + self._activations(point)

    def _activations(self, point: Point) -> float:
        model = self.model
        per_sample = _SEQ_LEN * (
            2.3 * model.layers * model.hidden + 44 * model.hidden + 9.0 * model.vocabulary
        )
        return 1.07 * per_sample * float(point.get("micro_batch", 1))

    def _host_bytes(self, where: Placement) -> float:
        states = 16.5 if where.optimizer == "cpu" else 3.0 if where.optimizer == "nvme" else 0.0
        weights = 2.2 if where.param == "cpu" else 0.5 if where.param == "nvme" else 0.0
        return self.machine.ranks * 3.5 * _GB + self.model.parameters * (states + weights)

    def _step_s(self, point: Point, where: Placement) -> float:
        micro = float(point.get("micro_batch", 1))
        micro_steps = _SAMPLES_PER_RANK / micro
        compute = self._compute_s(micro)
        traffic = self._traffic_s(point, where, compute)
        flush = self._gradient_copy_s(point, where)
        crowded = 1.05 if point.get("pin_memory") and where.param == "nvme" else 1.0
        return crowded * (micro_steps * (compute + traffic) + flush + self._update_s(point, where))

    def _compute_s(self, micro: float) -> float:
        """Forward, backward and recomputation of one micro-step; small ones leave the card half idle."""
        flops = 8 * self.model.parameters * _SEQ_LEN * micro
        efficiency = 0.62 * micro / (micro + 1.1)
        return flops / (self.machine.flops_per_s * efficiency) + self.model.layers * 0.9e-3

    def _traffic_s(self, point: Point, where: Placement, compute: float) -> float:
        """What collectives and parameter fetches of one micro-step are not hidden behind computing."""
        machine, count = self.machine, self.model.parameters
        moved = 0.0
        if machine.ranks > 1:
            volume = 2 * count * (machine.ranks - 1) / machine.ranks
            passes = {1: 0.4, 2: 1.0, 3: 3.0}[where.stage]
            moved += passes * volume / machine.collective_bytes_per_s
            moved += 0.25e-3 * count / point.get("reduce_bucket_size", 2**26)
        if where.param != "none":
            rate = self._link(point) if where.param == "cpu" else machine.nvme_bytes_per_s * 0.8
            moved += 2 * 2 * count / machine.ranks / rate
        hidden = 0.65 if point.get("overlap_comm") else 0.25
        if where.stage == 3:
            ahead = math.log2(max(2**16, point.get("prefetch_bucket_size", 2**16)) / 2**24)
            hidden -= 0.035 * min(6.0, abs(ahead)) + 0.08 * (point.get("max_live_parameters", 2**30) < 2**28)
            kept = math.log2(max(2**10, point.get("param_persistence_threshold", 2**10)))
            moved += self.model.layers * (0.5e-3 if kept < 13 else 0.2e-3)
        bucket = abs(math.log2(point.get("reduce_bucket_size", 2**26)) - 25)
        return max(moved * (1 - hidden), moved - compute) + 0.004 * bucket * compute

    def _gradient_copy_s(self, point: Point, where: Placement) -> float:
        if where.optimizer == "none":
            return 0.0
        swap = 1.15 if not point.get("contiguous_gradients", True) else 1.0
        turn = 0.9 if point.get("round_robin_gradients") else 1.0
        return swap * turn * 4 * self.model.parameters / self.machine.ranks / self._link(point) / 0.55

    def _update_s(self, point: Point, where: Placement) -> float:
        machine = self.machine
        share = self.model.parameters / machine.ranks
        if where.optimizer == "none":
            return share / machine.gpu_adam_elements_per_s
        away = share * (1 - point.get("resident_sixteenths", 0) / 16)
        tiles = 1 + 0.012 * math.log2(point.get("sub_groups", 1) or 1)
        seconds = tiles * away / machine.cpu_adam_elements_per_s + 2 * away / self._link(point)
        seconds += (share - away) / machine.gpu_adam_elements_per_s
        return seconds + (self._swap_s(point, away) if where.optimizer == "nvme" else 0.0)

    def _swap_s(self, point: Point, elements: float) -> float:
        """Reading and writing states; pipelining hides a part, queue and block size have an optimum."""
        off = abs(math.log2(point.get("aio_queue_depth", 8)) - 5) * 0.06
        off += abs(math.log2(point.get("aio_block_size", 2**20)) - 21) * 0.05
        off += 0.12 / point.get("aio_intra_op_parallelism", 1)
        exposed = 1.0 - 0.25 * bool(point.get("pipeline_read")) - 0.2 * bool(point.get("pipeline_write"))
        return exposed * (1 + off) * 24 * elements / self.machine.nvme_bytes_per_s

    def _link(self, point: Point) -> float:
        machine = self.machine
        return machine.pinned_bytes_per_s if point.get("pin_memory", True) else machine.pageable_bytes_per_s


_A100 = Machine(
    ranks=4, budget_bytes=40 * _GB, host_bytes=460 * _GB, flops_per_s=312e12, collective_bytes_per_s=150e9,
    pinned_bytes_per_s=19e9, pageable_bytes_per_s=6.5e9, cpu_adam_elements_per_s=2.6e9,
    gpu_adam_elements_per_s=45e9, nvme_bytes_per_s=1.4e9, context_bytes=2.1 * _GB,
)  # fmt: skip
_CARD24 = Machine(
    ranks=1, budget_bytes=23 * _GB, host_bytes=110 * _GB, flops_per_s=142e12, collective_bytes_per_s=1e9,
    pinned_bytes_per_s=21e9, pageable_bytes_per_s=5e9, cpu_adam_elements_per_s=1.3e9,
    gpu_adam_elements_per_s=30e9, nvme_bytes_per_s=3.1e9, context_bytes=1.2 * _GB,
)  # fmt: skip


def a100() -> Landscape:
    """llama-13b on a simulated node of four A100 with 40 GB."""
    return landscape_of("4 x A100-40GB, 13B", "llama-13b", "a100-40gb", _A100)


def card24() -> Landscape:
    """llama-3b on one simulated card of 24 GB."""
    return landscape_of("1 x 24 GB card, 3B", "llama-3b", "rtx3090", _CARD24)


def landscape_of(
    name: str, model_name: str, profile: str, machine: Machine, *, noise_share: float = NOISE_SHARE,
    laws: Callable[[Simulation], Simulation] = lambda plain: plain,
) -> Landscape:  # fmt: skip
    """One model on one machine in the default space; `laws` makes another simulation of the same inputs."""
    model = resolve_model(model_name)
    shape = shape_of(model.config)
    facts = facts_of(model_name, model.config, shape.parameter_numels, machine.ranks)
    space = load_space("default").fit(facts)
    predictor = Predictor(
        facts=facts, shape=shape, hardware=hardware_profile.load(profile),
        bounds=Bounds(device_bytes=int(machine.budget_bytes), host_bytes=int(machine.host_bytes)),
    )  # fmt: skip
    config = model.config
    dense = Model(
        parameters=float(shape.n_params), layers=config["num_hidden_layers"], hidden=config["hidden_size"],
        vocabulary=config["vocab_size"],
    )  # fmt: skip
    simulation = laws(Simulation(machine=machine, model=dense))
    return Landscape(
        name=name, note=f"simulated, {model_name}, noise {100 * noise_share:.0f} %", simulated=True,
        space=space,
        guess=Guesses(base={}, facts=facts, nvme_path="/nvme", predictor=lambda: predictor),
        truth=simulation.truth, measure=simulation.measure,
        baselines=tuple(point for _, point in space.baselines()), noise_share=noise_share,
    )  # fmt: skip


def facts_of(
    name: str, config: dict[str, object], numels: tuple[int, ...], ranks: int,
    samples_per_rank: int = _SAMPLES_PER_RANK, seq_len: int = _SEQ_LEN,
) -> Facts:  # fmt: skip
    """A workload of that model on so many GPUs, every op at hand."""
    workload = Workload(
        model_name=name, model_config=config, seq_len=seq_len, global_batch=samples_per_rank * ranks,
        world_size=ranks, precision="bf16", optimizer="adamw", activation_checkpointing=True, seed=0,
    )  # fmt: skip
    return Facts(
        workload=workload, device="cuda", parameter_numels=numels, nvme_dir="/nvme",
        ops=frozenset({"cpu_adam", "fused_adam", "async_io"}), deepspeed_version="0.19.8",
    )  # fmt: skip
