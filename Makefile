# Every target sets up what it needs. PYTHON picks the interpreter for the virtual environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup demo wheel test-wheel test test-core test-minimum fuzz faults coverage lint bench docs clean

setup: $(VENV)/.installed-all-dev

# One stamp per set of extras, so that the demo need not wait for what only tests and documentation use.
$(VENV)/.installed-%: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[$(subst -,$(comma),$*)]"
	touch $@

comma := ,

demo: $(VENV)/.installed-fast-plot-report-cli
	$(BIN)/ggmtl demo --output report.html

# Two workers on one thread each: workers whose linear algebra takes all cores only wait for one another.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# What a user has who installed nothing but the package: tests of extras skip with a reason.
test-core:
	test -x build/venv-core/bin/python || $(PYTHON) -m venv build/venv-core
	build/venv-core/bin/python -m pip install --quiet --editable . pytest hypothesis
	OMP_NUM_THREADS=1 build/venv-core/bin/python -m pytest -rs

# The lowest versions that pyproject.toml promises, pinned in tests/minimum.txt.
test-minimum:
	test -x build/venv-minimum/bin/python || $(PYTHON) -m venv build/venv-minimum
	build/venv-minimum/bin/python -m pip install --quiet --constraint tests/minimum.txt --editable \
		".[fast,plot,report,cli,data,dask]" pytest pytest-xdist hypothesis pandas polars duckdb
	OMP_NUM_THREADS=1 build/venv-minimum/bin/python -m pytest -n 2

# More than 40,000 fresh generated cases, counted in tests/fuzz.md (FUZZ_SHARE=0.1: a tenth of them); the slice in `make test` is small and always the same.
fuzz: setup
	HYPOTHESIS_PROFILE=long OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/fuzz tests/estimators/test_model_file.py -n 2 --durations=5

faults: setup
	$(BIN)/python tests/faults.py

# The NumPy forms of the kernels, because coverage cannot see into compiled code.
coverage: setup
	GGMTL_KERNELS=numpy OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --cov --cov-report=term:skip-covered --cov-fail-under=95

# What a user installs. pip alone builds it, so nothing need be set up.
wheel:
	rm -rf dist
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .

# The wheel in an empty environment, run outside of the checkout.
test-wheel: wheel
	rm -rf build/venv-wheel
	$(PYTHON) -m venv build/venv-wheel
	build/venv-wheel/bin/python -m pip install --quiet "$$(echo dist/ggmtl-*.whl)[cli,report,plot,fast]"
	cd $$(mktemp -d) && $(CURDIR)/build/venv-wheel/bin/ggmtl demo

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
