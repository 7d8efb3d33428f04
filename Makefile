# make demo, make test: each does all the set-up on a clean machine.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

.PHONY: demo test lint bench clean

demo: $(STAMP)
	$(BIN)/uncollapse demo --force

test: $(STAMP)
	$(BIN)/python -m pytest -n auto

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/uncollapse bench --force

# Installed once, and again only when what is to be installed changes.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev,vision]"
	touch $@

clean:
	rm -rf .venv
