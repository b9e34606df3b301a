"""The laws of the house: imports go down, heavy packages have one owner, help is light, commands are told."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "offtune"

# Rooms from the ground up; a file imports from its own room and from those above it in this table, and
# nothing in a circle. Before a colon the room, after it its files (shell patterns); some have two lines.
TABLE = """
    words: draft errors intervals phase_analysis rank_report recording script_start spread
    words: close_look
    words: timeline trial units
    machine: calibration check child_lines command core_groups devices hardware* host hub installed lock
    machine: machine_profile models one_thread scratch toolchain trouble
    shapes: activations decoder* model_*
    space: knob* space*
    ds_config: ds_*
    cost models: memory_* step_* time_*
    predictions: candidates predict
    strategy: baseline_order basis beliefs boundary caution convergence dominance features pool residuals
    strategy: strategy
    trials: command_ranks command_verdict launch log_tail multinode op_* ops probe runner verdict
    trials: warm_command
    studies: ending finals_notes repeats rounds winner
    studies: brief_runs crew database export* loss_check migrate records rows
    studies: sampling* schema score store* study
    settings: base_check budgets calibrate* command_settings config doctor *_checks plan* prepare verify
    settings: trial_length
    analysis: bound* dashboard effects importance nvml_trace
    analysis: profile trace_events traffic_check
    report: report.*
    searches: alike conclusion finals foresight guesses outlook search selection session trial_spec
    command line: cli* __main__
"""
_LINES = [line.strip().split(":") for line in TABLE.strip().splitlines()]
ROOMS = {
    room.strip(): tuple(name for other, files in _LINES if other == room for name in files.split())
    for room, _ in _LINES
}
CHILD = "offtune.worker"
SQL_FILES = ("crew", "database", "migrate", "schema", "store", "trouble")
OWNERS = {
    "pynvml": ("offtune.hardware",),
    "optuna": ("offtune.sampling", "offtune.importance", "offtune.dashboard"),
    "optuna_dashboard": ("offtune.dashboard",),
    "sqlalchemy": tuple(f"offtune.{n}" for n in SQL_FILES),
    "rich": ("offtune.report.terminal",),
    "plotly": ("offtune.report.html",),
    "jinja2": ("offtune.report.html",),
    "typer": ("offtune.cli",),
    "yaml": ("offtune.space_file", "offtune.hardware_profile"),
    "hjson": ("offtune.ds_text",),
    "numpy": tuple(f"offtune.{n}" for n in ("beliefs", "features", "residuals", "rounds", "strategy")),
    "torch": (CHILD,),
    "deepspeed": (CHILD,),
    "transformers": (CHILD,),
    "cpuinfo": (CHILD,),
}  # fmt: skip
# pydantic is not among them: typer itself loads it to read annotations, in some 50 ms.
HEAVY = ("torch", "deepspeed", "transformers", "optuna", "sqlalchemy", "pynvml", "yaml", "numpy", "psutil")


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = path
    return found


def imports_of(path: Path) -> set[str]:
    """Dotted names imported anywhere in a file, but for those under TYPE_CHECKING."""
    found: set[str] = set()
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            skipped.update(inner for child in node.body for inner in ast.walk(child))
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def own_imports(name: str, path: Path, known: set[str]) -> set[str]:
    wanted = {full if full in known else full.rpartition(".")[0] for full in imports_of(path)}
    return {other for other in wanted if other in known and other not in (name, "offtune")}


def room_of(name: str) -> int | None:
    short = name.removeprefix("offtune.")
    for number, patterns in enumerate(ROOMS.values()):
        if any(Path(short).match(pattern) for pattern in patterns):
            return number
    return None


def test_every_file_has_a_room():
    exempt = {"offtune", "offtune.report"}
    homeless = [n for n in modules() if n not in exempt and not n.startswith(CHILD) and room_of(n) is None]
    assert homeless == []


def test_imports_go_down():
    known = set(modules())
    wrong = []
    for name, path in modules().items():
        room = room_of(name)
        if name.startswith(CHILD) or room is None:
            continue
        for other in own_imports(name, path, known):
            other_room = room_of(other)
            if other.startswith(CHILD) or (other_room is not None and other_room > room):
                wrong.append(f"{name} -> {other}")
    assert wrong == []


def test_nothing_is_imported_in_a_circle():
    known = set(modules())
    graph = {name: own_imports(name, path, known) for name, path in modules().items()}
    while free := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for name in free:
            del graph[name]
    assert sorted(graph) == []


def test_the_child_knows_nothing_of_studies():
    allowed = {"words", "machine"}
    for name, path in modules().items():
        if name.startswith(CHILD):
            for other in own_imports(name, path, set(modules())):
                room = room_of(other)
                assert other.startswith(CHILD) or (room is not None and tuple(ROOMS)[room] in allowed), (
                    name,
                    other,
                )


@pytest.mark.parametrize("package", sorted(OWNERS))
def test_a_heavy_package_is_imported_by_its_owner_only(package):
    users = {
        name for name, path in modules().items() if any(i.split(".")[0] == package for i in imports_of(path))
    }
    strangers = {name for name in users if not name.startswith(OWNERS[package])}
    assert strangers == set()


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(','.join(sorted({{m.split('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split(","))


@pytest.mark.parametrize("arguments", [["--help"], ["search", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments):
    code = f"from offtune.cli import app\ntry:\n    app({arguments!r})\nexcept SystemExit:\n    pass"
    assert loaded_after(code) & set(HEAVY) == set()


def test_the_parent_searches_without_torch():
    heavy = {"torch", "deepspeed", "transformers"}
    assert loaded_after("import offtune.session, offtune.report.terminal, offtune.doctor") & heavy == set()


def test_showing_a_small_study_loads_no_optuna():
    assert "optuna" not in loaded_after("import offtune.report.study_report, offtune.report.insight_page")


def test_the_child_loads_neither_optuna_nor_sql():
    code = "import offtune.worker.rank, offtune.worker.server, offtune.worker.memory"
    assert loaded_after(code) & {"optuna", "sqlalchemy", "typer", "rich"} == set()


def test_every_command_has_help_an_example_and_a_place_in_the_readme():
    from typer.main import get_command

    from offtune.cli import app

    readme = (ROOT / "README.md").read_text()
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        assert command.help and "Example: offtune" in command.help, name
        assert f"offtune {name}" in readme, name
        for option in command.params:
            assert option.help, (name, option.name)  # type: ignore[attr-defined]


def test_functions_are_short_and_files_hold_one_subject():
    for name, path in modules().items():
        text = path.read_text()
        assert text.count("\n") <= 300, f"{name} is too long"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and not name.startswith("offtune.cli"):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 50, f"{name}.{node.name} is too long"
