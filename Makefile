# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
VENV := .venv
PYTHON ?= python3
READY := $(VENV)/.ready
DEV_READY := $(VENV)/.dev-ready
VALIDATOR := $(VENV)/validator
LAUNCHER := src/shoal/execution/processes/native/launcher

.PHONY: demo test test-python lint bench clean packages launcher

$(READY): pyproject.toml hatch_build.py $(wildcard src/shoal/execution/processes/native/*.[ch])
	tools/make-venv $(PYTHON) $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(DEV_READY): $(READY)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

$(VALIDATOR)/.ready: $(READY)  # of RO-Crates; its libraries do not agree with those of the linters
	tools/make-venv $(PYTHON) $(VALIDATOR)
	$(VALIDATOR)/bin/python -m pip install --quiet --disable-pip-version-check 'roc-validator>=0.13'
	@touch $@

packages:  # what the tests need from Debian; only root can install it
	tools/install-packages

demo: $(READY)
	examples/mosaic/demo $(VENV)/bin/shoal

lint: $(DEV_READY)
	$(VENV)/bin/ruff check src tests bench examples experiments
	$(VENV)/bin/ruff format --check src tests bench examples experiments
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

launcher: packages $(DEV_READY)  # where the environment was made before there was a compiler
	@[ -x $(LAUNCHER) ] || $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .

test: packages $(DEV_READY) launcher $(VALIDATOR)/.ready lint
	$(VENV)/bin/python -m pytest -n 4 --dist loadgroup  # many tests wait for something: more processes than cores make use of that

test-python: $(DEV_READY)  # what another version of Python could change: make test-python PYTHON=python3.13 VENV=.venv/python-3.13
	$(VENV)/bin/python -m pytest -n 4 --dist loadgroup tests/*/pure tests/*/property tests/*/e2e

bench: $(DEV_READY)
	$(VENV)/bin/python bench/run.py

clean:
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
