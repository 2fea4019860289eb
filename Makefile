# Every target sets up what it needs. PYTHON picks the interpreter for the virtual environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= all,dev
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup demo test lint bench docs clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]"
	touch $@

demo: setup
	$(BIN)/ggmtl demo --output report.html

test: setup
	$(BIN)/python -m pytest -n 2

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: setup
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

docs: setup
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	$(BIN)/python -m sphinx -W --keep-going -q -E -b html docs docs/_build/html

clean:
	rm -rf $(VENV) build dist report.html
