"""Loading before the forks: hurried or as any script does, it leaves the process the same."""

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import gc, sys, threading
from offtune.worker.preload import preload

seconds = preload([], ["llama"], hurried=sys.argv[1] == "hurried")
import cpuinfo
import deepspeed.ops
assert "__compatible_ops__" in vars(deepspeed.ops)
assert seconds["imports"] > 0
assert gc.isenabled() and gc.get_freeze_count() > 0
assert threading.active_count() == 1
assert cpuinfo.get_cpu_info.cache_info().currsize == 1
assert "deepspeed" in sys.modules and "transformers.models.llama.modeling_llama" in sys.modules
"""


@pytest.mark.train
@pytest.mark.parametrize("way", ["hurried", "as any script"])
def test_all_is_loaded_no_thread_is_left_and_garbage_is_collected_again(way: str) -> None:
    words, environment = [sys.executable, "-c", _PROGRAM, way], {**os.environ, "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
