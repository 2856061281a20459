# Everything sets itself up: Debian packages (sudo only when not root and something is missing)
# and the Python packages in .venv. A second run installs nothing and needs no network.

SHELL := /bin/bash
VENV := .venv/bin
PYTEST := $(VENV)/python -m pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint format clean distclean

help:
	@echo "make demo      compile a real model to C, build it, run it, check it, show sizes and time"
	@echo "make test      lint and all tests"
	@echo "make test-all  the same with the full matrix"
	@echo "make lint      ruff, mypy, import layers"
	@echo "make format    ruff format"
	@echo "make setup     only install what the others need"
	@echo "make clean     remove outputs and caches (distclean: and .venv)"

setup:
	@scripts/setup.sh test

demo:
	@scripts/setup.sh core
	@examples/demo.sh

test: lint
	@$(PYTEST)

test-all: lint
	@$(PYTEST) -m "not board and not bench"

lint: setup
	@$(VENV)/python -m ruff check --quiet .
	@$(VENV)/python -m mypy --no-error-summary
	@$(VENV)/lint-imports --no-cache > .cache/lint-imports.txt || { cat .cache/lint-imports.txt; exit 1; }

format: setup
	@$(VENV)/python -m ruff format .

clean:
	rm -rf out dist .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv
