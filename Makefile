# Every target sets up what it needs. PYTHON picks the interpreter for the virtual environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup demo test lint bench docs clean

setup: $(VENV)/.installed-all-dev

# One stamp per set of extras, so that the demo need not wait for what only tests and documentation use.
$(VENV)/.installed-%: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[$(subst -,$(comma),$*)]"
	touch $@

comma := ,

demo: $(VENV)/.installed-fast-plot-report-cli-data
	$(BIN)/ggmtl demo --output report.html

# Two workers on one thread each: workers whose linear algebra takes all cores only wait for one another.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: setup
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -W --keep-going -q -E -b html docs docs/_build/html

clean:
	rm -rf $(VENV) build dist report.html docs/_build
