# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
VENV := .venv
PYTHON ?= python3
READY := $(VENV)/.ready
DEV_READY := $(VENV)/.dev-ready
VALIDATOR := $(VENV)/validator

.PHONY: demo test lint bench clean packages

$(READY): pyproject.toml hatch_build.py $(wildcard src/shoal/runner/native/*.[ch])
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

test: packages $(DEV_READY) $(VALIDATOR)/.ready lint
	$(VENV)/bin/python -m pytest -n 4 --dist loadgroup  # many tests wait for something: more processes than cores make use of that

bench: $(DEV_READY)
	$(VENV)/bin/python bench/run.py

clean:
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
