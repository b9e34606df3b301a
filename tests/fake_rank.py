"""A rank that misbehaves as told by ds_config["fake"]: `python fake_rank.py SPEC RANK`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from offtune.rank_report import RankReport
from offtune.trial import MemoryPeaks, TrialSpec, load
from offtune.worker.rank import write


def report(rank: int, **changes: object) -> RankReport:
    fields: dict[str, object] = {
        "rank": rank,
        "outcome": "done",
        "step_s": (0.5, 0.4, 0.6),
        "losses": (2.0, 1.9, 1.8),
        "memory": MemoryPeaks(used_device_bytes=10**8, device_source="fake", used_host_bytes=2 * 10**8),
        "first_step_at": time.time(),
    }
    return RankReport(**{**fields, **changes})  # type: ignore[arg-type]


def eat_memory() -> None:
    hoard = []
    while True:
        hoard.append(bytearray(os.urandom(1024) * 20_000))
        time.sleep(0.01)


def leave_orphan(trial_dir: str) -> None:
    """A grandchild in a session of its own, which outlives its parent unless it is hunted down."""
    orphan = subprocess.Popen(["sleep", "300"], start_new_session=True)
    leave(Path(trial_dir).parent / "orphan.pid", str(orphan.pid))


def leave(path: Path, text: str) -> None:
    """A file that is there as a whole or not at all."""
    draft = path.with_suffix(".tmp")
    draft.write_text(text)
    draft.rename(path)


def main() -> None:
    spec = load(TrialSpec, Path(sys.argv[1]).read_bytes())
    rank = int(sys.argv[2])
    what = spec.ds_config["fake"]
    if what == "hang":
        time.sleep(300)
    elif what == "ignore_sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        leave(Path(spec.trial_dir).parent / "ignoring", "")
        time.sleep(300)
    elif what.startswith("signal"):
        os.kill(os.getpid(), int(what.split()[1]))
    elif what == "eat_memory":
        eat_memory()
    elif what == "half_result":
        (Path(spec.trial_dir) / f"rank{rank}.json").write_text('{"rank": 0, "outcome": "do')
        sys.exit(0)
    elif what == "megabytes":
        for _ in range(300):
            print("x" * 100_000)
        print("the last words")
        sys.exit(3)
    elif what == "one_dies":
        if rank == 1:
            sys.exit(7)
        time.sleep(300)
    elif what == "orphan":
        leave_orphan(spec.trial_dir)
        time.sleep(300)
    elif what == "shm":
        Path(f"/dev/shm/deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1_{spec.token}_{rank}").write_bytes(
            b"x" * 1000
        )
        (Path(spec.swap_dir) / "swap").write_bytes(b"x" * 1000)  # type: ignore[arg-type]
        write(spec, report(rank))
        sys.exit(0)
    elif what == "fits":
        write(spec, report(rank, step_s=(0.5, 0.4, 0.6) if rank == 0 else (0.4, 0.7, 0.6)))
        sys.exit(0)
    elif what == "dies_in_close_look":
        write(spec, report(rank, close_error="told to"))
        os.kill(os.getpid(), signal.SIGABRT)
    elif what == "over":
        write(spec, report(rank, memory=MemoryPeaks(used_device_bytes=3 * 10**9, used_host_bytes=10**8)))
        sys.exit(0)
    else:
        write(spec, report(rank, outcome=what, error="told to", stage="warm-up step 1 of 3"))
        sys.exit(1)


main()
