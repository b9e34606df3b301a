"""A script forked from the warm server behaves as in a fresh interpreter, and leaves nothing behind."""

import json
import sys
from pathlib import Path

import psutil
import pytest
from conftest import copies_pages, workload

from offtune import ds_config, ops
from offtune.command import parse_command
from offtune.command_ranks import CommandRanks
from offtune.runner import TrialRunner, run_ranks
from offtune.trial import Facts, Status, dump

pytestmark = pytest.mark.train

EXAMPLES = Path(__file__).parent.parent / "examples"
PLAIN = (
    str(EXAMPLES / "plain_deepspeed.py"),
    "--deepspeed_config",
    "{ds_config}",
    "--output",
    "{trial_dir}/o",
)
FACTS = """
import json, os, sys, threading
own = {key: value for key, value in os.environ.items() if key not in ("MASTER_PORT", "LC_CTYPE")}
facts = {
    "argv": sys.argv, "first on the path": sys.path[0], "cwd": os.getcwd(), "name": __name__,
    "file": __file__, "spec": __spec__ is None, "is main": sys.modules["__main__"].__dict__ is globals(),
    "stdin": sys.stdin.read(), "environment": own,
    "threads": [t.name for t in threading.enumerate() if "_end_with" not in t.name],
    "files": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)),
}
with open("facts.json", "w") as file:
    json.dump(facts, file)
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def runner(said: list[str]):
    ready = ops.needed_ops("cpu", "adamw", ["zero2"], nvme=False)
    states = ops.prepare(ready, "cpu", print)
    assert {state.state for state in states.values()} == {"ready"}, states
    with TrialRunner("cpu", 1, ready, "", said.append) as runner:
        yield runner


@pytest.fixture
def make(make_spec, tmp_path):
    """A spec for a command of our interpreter in the test's folder."""

    def made(*words: str, placement: str = "zero2"):
        command = parse_command([sys.executable, *words], str(tmp_path), "here")
        work = workload(command=command, seq_len=None, global_batch=8)
        facts = Facts(workload=work, device="cpu", parameter_numels=(1000,), nvme_dir=None,
                      ops=frozenset(), deepspeed_version="0.19.8")  # fmt: skip
        config = ds_config.build({}, {"placement": placement, "micro_batch": 4}, facts, None)
        return make_spec(config, workload=work)

    return made


@pytest.fixture
def both(make, runner, tmp_path):
    """Run a script warm and cold; for each its exit code, its log and what it wrote to facts.json."""

    def run(text: str, *arguments: str, module: bool = False):
        (tmp_path / "script.py").write_text(text)
        words = ("-m", "script", *arguments) if module else ("script.py", *arguments)
        found = []
        for launch in (runner.command_ranks, CommandRanks):
            spec = make(*words)
            spec_path = Path(spec.trial_dir) / "spec.json"
            spec_path.write_text(dump(spec))
            ending = run_ranks(spec, launch, spec_path)
            facts = tmp_path / "facts.json"
            told = json.loads(facts.read_text().replace(spec.trial_dir, "DIR")) if facts.exists() else None
            facts.unlink(missing_ok=True)
            log = (Path(spec.trial_dir) / "rank0.log").read_text()
            found.append((ending.codes, log.replace(spec.trial_dir, "DIR"), told))
        return found

    return run


@pytest.mark.parametrize("module", [False, True], ids=["script", "module"])
def test_a_script_finds_what_a_fresh_interpreter_gives_it(both, module):
    warm, cold = both(FACTS, "--a", "b c", "{{x}}", module=module)
    assert warm[0] == (0,), warm[1]
    assert warm[2] == cold[2]
    assert warm[2]["argv"][1:] == ["--a", "b c", "{x}"]


ENDINGS = {
    "by itself": "print('done')",
    "a number": "import sys; sys.exit(3)",
    "a text": "import sys; sys.exit('no data')",
    "an exception": "def load():\n    raise ValueError('no data')\nload()",
    "a syntax error": "x = (",
    "a thread and a handler": (
        "import atexit, threading\natexit.register(print, 'handler')\nsaid = threading.Event()\n"
        "threading.Thread(target=lambda: (said.wait(), print('thread'))).start()\nprint('main')\nsaid.set()"
    ),
    "a spawned process": (
        "import multiprocessing\ndef double(x):\n    return 2 * x\n"
        "if __name__ == '__main__':\n    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(double, [1, 2]))"
    ),
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
}


@pytest.mark.parametrize("text", ENDINGS.values(), ids=ENDINGS)
def test_every_ending_is_that_of_a_fresh_interpreter(both, text):
    warm, cold = both(text)
    assert warm == cold


def test_what_one_script_does_to_its_process_another_does_not_see(both, runner):
    server = psutil.Process(runner.server.pid)
    both(FACTS)
    files, threads = server.num_fds(), server.num_threads()
    before = both(FACTS)[0][2]
    mess = (
        "import os, sys, threading, random, torch\nos.environ['MESS'] = '1'\nos.chdir('/')\n"
        "kept = [open(os.devnull) for _ in range(50)]\nsys.path.insert(0, '/mess')\ntorch.manual_seed(7)\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "block = bytearray(200_000_000)\n"
        "torch.set_num_threads(3)\nsys.argv.append('mess')"
    )
    warm, _ = both(mess)
    assert warm[0] == (0,), warm[1]
    assert both(FACTS)[0][2] == before
    assert (server.num_fds(), server.num_threads()) == (files, threads)
    assert server.children(recursive=True) == []


SHARED = """
import json
with open("/proc/self/smaps_rollup") as file:
    lines = [line.split() for line in file.readlines()[1:]]
with open("facts.json", "w") as file:
    json.dump({line[0]: 1024 * int(line[1]) for line in lines}, file)
"""


@copies_pages
def test_a_script_has_memory_of_its_own_as_when_started_cold(both):
    """Shared with the server would be some 350 MB; of those that nobody can write any more some stay so."""
    warm, cold = (each[2] for each in both(SHARED))
    assert warm["Private_Dirty:"] > 200e6
    assert warm["Shared_Dirty:"] < 50e6
    assert cold["Shared_Dirty:"] == 0


LATE = f"""
import os, runpy, sys
os.environ["OMP_NUM_THREADS"] = "2"
sys.path.insert(0, {str(EXAMPLES)!r})
runpy.run_path({str(EXAMPLES / "plain_deepspeed.py")!r}, run_name="__main__")
"""


def test_a_script_trains_alike_whatever_ran_before_and_as_when_started_cold(make, runner, said, tmp_path):
    first = runner(make(*PLAIN))
    assert (first.status, first.start) == (Status.OK, "warm"), first.reason + first.log_tail
    assert runner(make(*PLAIN, placement="zero3")).status is Status.OK
    again = runner(make(*PLAIN))
    assert (again.losses, again.start) == (first.losses, "warm")
    assert said == []
    (tmp_path / "late.py").write_text(LATE)
    cold = runner(make("late.py", *PLAIN[1:]))
    assert (cold.status, cold.start) == (Status.OK, "cold"), cold.reason + cold.log_tail
    # Two threads add up in another order than one; what is learned is the same.
    assert cold.losses == pytest.approx(first.losses, abs=1e-3)
    assert len(said) == 1
    assert "OMP_NUM_THREADS" in said[0]
    assert runner.server is None
