"""Kill rank 1 of a trial, or its keeper, once it trains: `python kill_rank.py TRIAL_DIR rank|keeper`."""

import sys
import time
from pathlib import Path

import psutil

trial_dir, victim = Path(sys.argv[1]), sys.argv[2]
log = trial_dir / "rank1.log"
give_up = time.monotonic() + 500
while not (log.exists() and "measured step" in log.read_text(errors="replace")):
    if time.monotonic() > give_up:
        sys.exit("rank 1 never trained")
    time.sleep(0.1)
for process in psutil.process_iter(["cmdline"]):
    words = process.info["cmdline"] or []
    if "offtune.worker.rank" in words and words[-4:-3] == ["1"] and str(trial_dir / "spec.json") in words:
        target = process if victim == "rank" else process.parent()
        target.kill()
        sys.exit(0)
sys.exit("rank 1 was not found")
