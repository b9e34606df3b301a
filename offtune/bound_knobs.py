"""What can bound a phase, and the knobs of the search spaces that act on it.

Covered: the closed list of resources, two or three knobs for each phase and resource. Not covered: finding
the resource (`bounds.py`). The choices follow what DeepSpeed moves in each phase (docs of `search_spaces`)
and what published measurements of offloaded training found to pay.
"""

from __future__ import annotations

from typing import Literal

Resource = Literal[
    "GPU compute",
    "CPU compute",  # of the CPU accelerator, in place of the GPU's
    "H2D",
    "D2H",
    "collective",
    "CPU optimizer",
    "NVMe read",
    "NVMe write",
    "host memory bandwidth",
    "Python/launch overhead",
    "waiting",
    "not known",
]
NOT_KNOWN: Resource = "not known"

# The knobs that act on a resource, the stronger first; names of `knobs.KNOBS`.
KNOBS_FOR: dict[tuple[str, Resource], tuple[str, ...]] = {
    ("forward", "GPU compute"): ("micro_batch",),
    ("forward", "CPU compute"): ("micro_batch",),
    ("forward", "H2D"): ("prefetch_bucket_size", "max_reuse_distance", "placement"),
    ("forward", "collective"): ("param_persistence_threshold", "prefetch_bucket_size"),
    ("forward", "NVMe read"): ("param_max_in_cpu", "aio_queue_depth", "placement"),
    ("forward", "Python/launch overhead"): ("micro_batch", "param_persistence_threshold"),
    ("forward", "waiting"): ("prefetch_bucket_size", "param_persistence_threshold", "micro_batch"),
    ("backward", "GPU compute"): ("micro_batch", "activation_checkpointing"),
    ("backward", "CPU compute"): ("micro_batch", "activation_checkpointing"),
    ("backward", "D2H"): ("resident_sixteenths", "micro_batch", "pin_memory"),
    ("backward", "H2D"): ("micro_batch", "prefetch_bucket_size", "max_reuse_distance"),
    ("backward", "collective"): ("overlap_comm", "reduce_bucket_size"),
    ("backward", "NVMe read"): ("param_max_in_cpu", "aio_queue_depth", "placement"),
    ("backward", "NVMe write"): ("spare_buffers", "aio_block_size", "placement"),
    ("backward", "Python/launch overhead"): ("micro_batch", "reduce_bucket_size"),
    ("backward", "waiting"): ("overlap_comm", "pin_memory", "micro_batch"),
    ("update", "GPU compute"): ("resident_sixteenths", "placement"),
    ("update", "CPU optimizer"): ("resident_sixteenths", "placement"),
    ("update", "host memory bandwidth"): ("resident_sixteenths", "placement"),
    ("update", "H2D"): ("resident_sixteenths", "pin_memory"),
    ("update", "D2H"): ("placement", "resident_sixteenths"),
    ("update", "collective"): ("reduce_bucket_size", "placement"),
    ("update", "NVMe read"): ("pipeline_read", "aio_queue_depth", "placement"),
    ("update", "NVMe write"): ("pipeline_write", "aio_block_size", "placement"),
    ("update", "Python/launch overhead"): ("sub_groups", "micro_batch"),
    ("update", "waiting"): ("resident_sixteenths", "pipeline_read", "placement"),
    # What helps a phase that is slow for a reason not measured, from the published studies of offload.
    ("forward", "not known"): ("micro_batch", "prefetch_bucket_size"),
    ("backward", "not known"): ("micro_batch", "overlap_comm"),
    ("update", "not known"): ("resident_sixteenths", "placement"),
}
