# Everything lives in $(VENV); a machine needs python3 (3.11 or newer), make and g++.
# Package downloads go through pip, so its configuration and PIP_* variables hold.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help gate test lint venv venv-dev clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=python3.12 (makes $(VENV)), ARGS='...' (passed to pytest)"

# The folder keeps pytest from collecting tests/, which need the development tools.
gate: venv ## measure: run the gates this machine can run, end in a verdict
	$(BIN)/python -m pytest --qperf --qperf-only engine_recipes $(ARGS)

test: lint ## check the project: linters, types, layers, tests
	$(BIN)/python -m pytest $(ARGS)

lint: venv-dev ## linters, types and layers only
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

venv: $(VENV)/.installed ## install the package and its dependencies into the environment

venv-dev: $(VENV)/.installed-dev ## the same, and the development tools

clean: ## remove the environment and every cache and build output
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
	  .benchmarks build dist qperf-report
	find pytest_qperf plugins tests -type d -name __pycache__ -prune -exec rm -rf {} +

# The stamps are touched last, so an interrupted installation starts again.
$(VENV)/.installed: pyproject.toml | $(BIN)/pip
	@echo "Installing pytest-qperf and its dependencies into $(VENV) ..."
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# `pip install --group` needs pip 25.1; the pip that comes with Python 3.11 is older.
$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing the development tools into $(VENV) ..."
	$(BIN)/python -m pip install --quiet 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

# The target is pip, not python: where the system lacks ensurepip, `venv` leaves a python without it.
$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { echo "make: expected a Python interpreter, \
	got '$(PYTHON)', which is not found; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("make: expected \
	Python 3.11 or newer, got %d.%d ($(PYTHON)); name another: make PYTHON=/path/to/python3.11" % v[:2])'
	$(PYTHON) -m venv $(VENV)
