# demo: train on real data on a local cluster.  quick: tests for every change.
# test: the suite.  exhaustive: each of its cases in every way.
# engines: the same job on every engine that can start one, where installed.
# check: formatting, lint, types, layering.     bench: ours against stock.
# Everything is installed into .venv; nothing outside this folder changes.

unexport PYTHONDONTWRITEBYTECODE  # tests start many programs

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install demo quick test exhaustive engines check format bench clean

help:
	@sed -n 's/^# //p' Makefile

install: $(STAMP)

# Modules are compiled as they are imported: all of them would take a minute.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  --editable '.[bench,dev,examples,tensorboard,test]'
	touch $@

demo: $(STAMP)
	$(BIN)/python examples/flights/demo.py

# With a new process in a crashed one's place, xdist would stand still.
PYTEST := $(BIN)/python -m pytest --dist=loadfile --no-loadscope-reorder \
  --max-worker-restart=0

quick: $(STAMP)
	$(PYTEST) --numprocesses=3 -m quick tests/unit tests/cluster

# A third process has two cores work while others wait for tasks.
test: $(STAMP)
	$(PYTEST) --numprocesses=3

exhaustive: $(STAMP)
	$(PYTEST) --numprocesses=2 --exhaustive -o timeout=1200

engines: $(STAMP)
	tools/install_engines.sh hosts page secure slurm spark
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --editable '.[engines]'
	$(BIN)/python -m pytest -n0 --exhaustive -o timeout=1200 tests/launch --write_matrix

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist runs *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
