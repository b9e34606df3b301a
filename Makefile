# Everything a newcomer needs: `make search` runs the main job, `make test` passes the tests.
# Both make their own virtual environment in .venv first.

PYTHON ?= python3
VENV   ?= .venv
BUDGET ?= 2GB
ARGS   ?=
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: search test check lint fast clean

search: $(READY)
	$(BIN)/offtune search --budget $(BUDGET) $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest

# Before each commit: linters, types, and the tests that train nothing.
check: lint fast

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fast: $(READY)
	$(BIN)/python -m pytest -q -m "not train"

$(READY): pyproject.toml requirements-tested.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c requirements-tested.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist
