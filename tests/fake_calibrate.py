"""A child that pretends to measure, `fake_calibrate.py MODE TASK`; each mode goes wrong in its own way."""

import json
import os
import subprocess
import sys
import time


def tell(**event):
    print(json.dumps(event), flush=True)


def figure(key, value, unit="B/s", **more):
    tell(event="figure", key=key, value=value, unit=unit, **more)


def main(mode: str, task: dict) -> None:
    tell(event="begin", section="host memory")
    figure("host.copy.threads_1", 5e9, spread=0.1, count=9, detail="copies")
    if mode == "whole":
        figure("matrix.bf16", 1e11, unit="FLOP/s", spread=0.02, count=9, detail="products")
        figure("attention.bf16", 4e10, unit="FLOP/s", spread=0.02, count=9, detail="bf16")
        figure("nvme.read", None, detail="no folder was named")
        print("torch says hello")
        print('{"event": "figure", "key": 7}')
        print("[1, 2]")
        tell(event="end")
    elif mode == "hang":
        tell(event="begin", section="CPU Adam")
        helper = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
        )
        figure("helper", float(helper.pid), unit="1")
        time.sleep(600)
    elif mode == "babble":
        while True:
            print("x" * 1000, flush=True)
    elif mode == "die":
        tell(event="begin", section="storage")
        print("aio: cannot lock memory", file=sys.stderr, flush=True)
        os.abort()
    elif mode == "section":
        tell(event="begin", section="CPU Adam")
        tell(event="failed", section="CPU Adam", error="RuntimeError: no op")
        tell(event="end")


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    if sys.argv[1] == "nothing":
        print("no torch here", file=sys.stderr)
        sys.exit(3)
    main(sys.argv[1], given)
