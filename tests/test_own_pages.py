"""After a fork a process has pages of its own, and no more of them than before."""

import subprocess
import sys

from conftest import copies_pages

_PROGRAM = """
import mmap, os, re, sys
from pathlib import Path
from offtune.worker.own_pages import take_own_pages

held = [bytes([value]) * 100_000 for value in range(200)]  # 20 MB of the heap
sparse = mmap.mmap(-1, 64 * 2**20, mmap.MAP_PRIVATE)
sparse[2**20] = 1  # one page of many

def kib(key):
    areas = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M)
    private = [area for area in areas if " rw-p " in area.partition("\\n")[0] and "[v" not in area]
    return sum(int(value) for area in private for value in re.findall(rf"^{key}: +(\\d+)", area, re.M))

if os.fork() == 0:
    shared, resident = kib("Shared_Dirty"), kib("Rss")
    take_own_pages()
    whole = held[7] == bytes([7]) * 100_000
    print(shared, kib("Shared_Dirty"), resident, kib("Rss"), sparse[2**20], whole, flush=True)
    os._exit(0)
os.wait()
"""


@copies_pages
def test_nothing_stays_shared_and_no_page_comes_to_be() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    shared, still_shared, resident, resident_after, *kept = done.stdout.split()
    assert int(shared) > 20_000, "the fork shared what was held"
    assert int(still_shared) < 200, "of what was shared nothing is left but what reading it allocated"
    assert int(resident_after) - int(resident) < 1000
    assert kept == ["1", "True"]
