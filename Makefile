# Headstart: `make` alone lists the targets. Each needs Python 3.11+ and nothing else; `init` runs by itself.

PYTHON ?= python3
BIN    := .venv/bin
PYTEST  = OMP_WAIT_POLICY=passive $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help init postgresql demo serve test format-check lint types contracts unit long bench conformance format constraints clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

init: ## make .venv: packages, the default model (quick when nothing changed)
	@$(PYTHON) scripts/setup.py

postgresql: # what the tests start a server with
	@$(PYTHON) scripts/setup_postgresql.py

demo: init ## see it work: cold against cached, with answers and a bill that adds up (about two minutes)
	@$(BIN)/headstart demo

serve: init ## start the server on 127.0.0.1:8080 and print a snippet to paste
	@$(BIN)/headstart serve

test: init postgresql ## format, lint, types, import contracts, tests (CI runs this, `make long` and `make conformance`)
	@$(MAKE) --no-print-directory -j2 --output-sync=line format-check lint types contracts
	@$(MAKE) --no-print-directory unit

format-check: init ## is everything formatted?
	$(BIN)/ruff format --check .

lint: init ## ruff's rules
	$(BIN)/ruff check .

types: init ## mypy, strict
	$(BIN)/mypy

contracts: init ## who may import whom
	$(BIN)/lint-imports

unit: init postgresql ## the tests alone; one file: .venv/bin/pytest tests/billing/test_rating.py
	$(PYTEST) -m "not long"

long: init postgresql ## the tests that take long: kills at every moment, crowds, the demo, the README's examples
	$(PYTEST) -m long

conformance: init ## every version of the stock clients against a whole server; see docs/conformance.md
	@$(BIN)/python scripts/conformance_environments.py
	$(BIN)/pytest tests/conformance

bench: init ## every figure beside its peers, which it installs first (about an hour; leave the machine alone meanwhile)
	@$(BIN)/pip install --quiet --no-compile -c constraints.txt -e ".[bench]"
	@$(BIN)/python -m bench all

format: init ## format, and repair what ruff can repair
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

constraints: init ## write the versions in .venv to constraints.txt
	$(BIN)/python scripts/freeze_constraints.py

clean: ## remove .venv, the clients' environments and the tools' caches (your data and the converted model stay)
	rm -rf .venv .venv-conformance .setup.lock .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .grimp_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
