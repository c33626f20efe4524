# `make demo` and `make test` need Python >= 3.11 and a C library, nothing else.

PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin

.PHONY: demo test test-deep test-peers lint types check goldens mutants clean

demo: $(VENV)/.installed
	$(BIN)/assay run story -p "Once upon a time" -n 200 --seed 7

test: $(VENV)/.installed-dev
	$(BIN)/pytest conformance/

test-deep: $(VENV)/.installed-dev
	ASSAY_DEEP=1 $(BIN)/pytest conformance/

# llama.cpp through llama-cpp-python, built with clang 19: GCC 12 miscompiles its AMX code.
test-peers: $(VENV)/.installed-peers
	$(BIN)/pytest conformance/llama -m peers

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

check: lint types test

goldens: $(VENV)/.installed-dev
	$(BIN)/python -m data.golden.make

mutants: $(VENV)/.installed-dev
	$(BIN)/python -m conformance.mutants --count 200

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-peers: $(VENV)/.installed-dev
	CC=clang-19 CXX=clang++-19 $(BIN)/pip install --no-binary llama-cpp-python --editable '.[peers]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
