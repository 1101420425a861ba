# The two commands are `make train` and `make test`; each sets up .venv first if that is needed.
SHELL := /bin/bash
BIN := .venv/bin
CONFIG ?= configs/classic/cartpole-ppo.yaml
# Test processes: a number, or as many as there are cores, four at most (each compiles and holds JAX).
WORKERS ?= logical
# The default tests compile much and compute little.
# Not those that start Ray: actors compile in their own way, and are compared bit by bit.
COMPILE_QUICKLY := XLA_FLAGS="$$XLA_FLAGS $$(.ci/compile_quickly $(BIN)/python)"
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal
# Tests that start Ray share one cluster, so they run in one process, which collects only their files.
RAY_FILES = $$(grep -rl --include='*.py' 'mark\.ray' tests | LC_ALL=C sort)
RAY_PYTEST = .ci/loopback $(BIN)/python -m pytest $(RAY_FILES)
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python; do \
	"$$python" -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo "$$python"; break; }; done)
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# What pip does with one core; packages hold files of other Python versions, which do not compile.
COMPILE_INSTALLED := $(BIN)/python -W ignore -m compileall -qq -j 0 .venv/lib || true

.PHONY: help train test test-slow test-shapes coverage lint format docs clean

help:
	@echo "make train      train PPO on CartPole (CONFIG=... for another file of configs/)"
	@echo "make test       lint, format, types, import layers and the default test suite"
	@echo "make test-slow  the learning curves and other long tests"
	@echo "make test-shapes  the default tests with the shapes of annotations checked at run time"
	@echo "make coverage   the default tests with coverage of lines and branches, in build/coverage"
	@echo "make lint       only lint, format, types, import layers and spelling"
	@echo "make format     rewrite the code as the formatter wants it"
	@echo "make docs       build the documentation into build/site"

train: .venv/.core
	$(BIN)/jaxrl train file $(CONFIG)

test: .venv/.dev
	@failed=0; \
	$(COMPILE_QUICKLY) $(PYTEST) || failed=1; \
	$(RAY_PYTEST) -m "ray and not slow" || failed=1; \
	exit $$failed

test-slow: .venv/.dev
	@failed=0; \
	$(PYTEST) -m "slow and not ray" || failed=1; \
	$(RAY_PYTEST) -m "slow and ray" || failed=1; \
	exit $$failed

# Array annotations are checked at every call, while programs are traced too.
SHAPES := -p tests.shapes --jaxtyping-packages=jaxrl,tests.shapes.check
SHAPES_OF := tests/ops tests/core tests/buffers tests/connectors tests/algorithms tests/runners
# Compares seconds of the host with those of the device, and checks take the host's.
SHAPES_OF += --deselect tests/runners/test_ahead.py::test_what_is_computed_beside_is_not_counted_twice

test-shapes: .venv/.dev
	$(COMPILE_QUICKLY) $(PYTEST) $(SHAPES) $(SHAPES_OF)

coverage: .venv/.dev
	@failed=0; rm -f .coverage*; \
	$(COMPILE_QUICKLY) $(PYTEST) --cov --cov-report= || failed=1; \
	$(RAY_PYTEST) -m "ray and not slow" --cov --cov-append --cov-report= || failed=1; \
	$(BIN)/coverage html --quiet && $(BIN)/coverage report --skip-covered || failed=1; \
	exit $$failed

lint: .venv/.dev
	$(BIN)/python -m pytest tests/house

format: .venv/.dev
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

docs: .venv/.dev
	$(BIN)/mkdocs build --strict

clean:
	rm -rf build dist .pytest_cache .ruff_cache .import_linter_cache

.venv/bin/pip:
	@[ -n "$(PYTHON)" ] && "$(PYTHON)" -c '$(SUPPORTED)' || { \
	  echo "jaxrl needs Python 3.11, 3.12 or 3.13, and $(if $(PYTHON),'$(PYTHON)' is not,no python on the PATH is) one" \
	    "of them; name one, as in: make train PYTHON=/path/to/python3.12" >&2; exit 2; }
	"$(PYTHON)" -m venv .venv

.venv/.core: pyproject.toml constraints.txt | .venv/bin/pip
	@echo "Installing jaxrl into .venv (the first time takes a few minutes)"
	@$(PIP_INSTALL) -e .
	@$(COMPILE_INSTALLED)
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/pip
	@echo "Installing jaxrl and its test tools into .venv (the first time takes a few minutes)"
	@$(PIP_INSTALL) -e ".[dev]"
	@$(COMPILE_INSTALLED)
	@touch .venv/.core $@
