# Every target makes .venv and installs into it when it is missing or older than what it was made from.
.DEFAULT_GOAL := help
.PHONY: help parity mutants models test test-all bench bench-full lint format mirror twins wheel-test clean

CANDIDATES = python3.11 python3 python
FIT = import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in $(CANDIDATES); do $$p -c "$(FIT)" 2>/dev/null && echo $$p && break; done)
ARGS ?=
WORKERS ?= 2
BIN = .venv/bin
READY = .venv/.ready

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile
	@echo "  ARGS=... is passed on, as in: make parity ARGS='--dtype float64'"

parity: $(READY)  ## judge every implementation here against the float64 oracle
	@$(BIN)/python -m parity run $(ARGS)

mutants: $(READY)  ## attention that is wrong on purpose: the judge must reject all of it
	@$(BIN)/python -m parity mutants $(ARGS)

models: $(READY)  ## every model family against transformers' own code, in both frameworks
	@$(BIN)/python -m tools.models $(ARGS)

test: $(READY)  ## the tests, without the slow ones
	@$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadfile $(ARGS)

test-all: $(READY)  ## every test
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

bench: $(READY)  ## time every implementation, a few minutes
	@$(BIN)/python -m benchmarks run $(ARGS)

bench-full: $(READY)  ## the same at every size, two hours or more
	@$(BIN)/python -m benchmarks run --full $(ARGS)

lint: $(READY)  ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(READY)  ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

mirror: $(READY)  ## how alike each pair of files of attn_torch and attn_jax is
	@$(BIN)/python -m tools.mirror

twins: $(READY)  ## copy the files that must be identical from attn_torch to attn_jax
	@$(BIN)/python -m tools.mirror --copy-twins

wheel-test: $(READY)  ## build the wheel, install it elsewhere, test it from there
	@$(BIN)/python -m pytest tests/test_packaging.py $(ARGS)

clean:  ## remove caches and parity reports; .venv and benchmark results stay
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis parity-report*
	find . -name __pycache__ -not -path "./.venv/*" -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "needs Python 3.11 or later; name one: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c "$(FIT)" || { echo "$(PYTHON) is not Python 3.11 or later; name one: make PYTHON=/path/to/python"; exit 1; }
	@echo "installing into .venv what constraints.txt pins, with $(PYTHON); minutes the first time, then not again"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
