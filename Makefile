# make demo, make test: each does all the set-up on a clean machine.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
CORE := .venv-core
# What needs torch, numpy, pandas and tqdm alone.
CORE_TESTS := tests/attention tests/metrics tests/theory tests/test_core.py tests/diagnosis/test_observer.py

.PHONY: demo test test-slow test-core attack lint bench docs clean

demo: $(STAMP)
	$(BIN)/uncollapse demo --force

# worksteal: the tests of a file mostly stay together, so that what they share is made once
test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal

# What takes minutes: every row of the table of GPU kernels compiled, every seeded bug.
test-slow: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow

# All of tests/attack, of which `make test` runs a part; the counts are those that docs/reliability.md states.
# One process: the attacks measure, kill and fill their own.
attack: $(STAMP)
	rm -f tests/attack/counts.json
	UNCOLLAPSE_ATTACK=full $(BIN)/python -m pytest tests/attack --durations 10 --ignore tests/attack/test_reliability.py
	$(BIN)/python -m tests.attack.reliability
	$(BIN)/python -m pytest tests/attack/test_reliability.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, into site/, from docs/ and the docstrings; without a network. A warning or a dead link is an error.
docs: $(STAMP)
	$(BIN)/python docs/generator/build.py

bench: $(STAMP)
	$(BIN)/uncollapse bench --force

# The library without any extra, in an environment of its own. Installed, not editable: a wheel has to work there.
test-core:
	$(PYTHON) -m venv --clear $(CORE)
	$(CORE)/bin/pip install --quiet --constraint constraints.txt . pytest pytest-xdist hypothesis
	$(CORE)/bin/python -m pytest -n auto --dist worksteal $(CORE_TESTS)

# Installed once, and again only when what is to be installed changes. LOCKED=1, as in CI: nothing is installed that has
# not the sha256 of requirements.lock, which .ci/lock writes (Linux, Python 3.11).
$(STAMP): pyproject.toml studies/pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -m venv .venv
ifeq ($(LOCKED),1)
	$(BIN)/pip install --quiet --no-deps --require-hashes --only-binary :all: --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable . --editable studies
else
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]" --editable studies
endif
	touch $@

clean:
	rm -rf .venv $(CORE) site
