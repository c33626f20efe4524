# `make demo` and `make test` need Python >= 3.11 and a C library, nothing else.

PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin

# Installed before transformers asks for any torch; TORCH may be a CPU build's wheel or options of
# pip, since on Linux the index's own builds bring gigabytes of CUDA.
TORCH        ?= torch==2.13.0
TRANSFORMERS ?= transformers>=4.50,<6

# Tests start hundreds of programs, none of which is to compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

# Of tests at a time, each of some 1.5 GB.
PROCESSES ?= 2
# One that crashes or hangs ends the tests: another would only begin again with the same test.
SEVERAL = -n $(PROCESSES) --max-worker-restart 0

.PHONY: demo test test-all arm test-arm test-deep test-wheel test-transformers test-peers peer-goldens
.PHONY: bench bench-quick card report browser gpu-check
.PHONY: lint types docs check goldens mutants clean

demo: $(VENV)/.installed
	$(BIN)/assay run story -p "Once upon a time" -n 200 --seed 7

# Every op, format and promise, by the kernels that this machine would choose and the portable ones.
# The first line probes the machine's limits: what a busy one gives would not be kept. Of several
# processes each keeps to one core (conftest.py), so what threads do on many is tested apart.
test: $(VENV)/.installed-dev
	$(BIN)/python -c "from bench.machine.limits import limits; limits()"
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest conformance/ -m "not exhaustive" $(SEVERAL) \
		--ignore conformance/parallel
	$(BIN)/pytest conformance/parallel
	$(BIN)/pytest bench/ -m "not exhaustive" --quick --threads 2 $(SEVERAL)

# The other variants, CUDA's kernels on an emulator, and transformers beside them.
test-all: test test-transformers
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest conformance/ -m exhaustive $(SEVERAL)
	$(BIN)/pytest bench/test_ops.py -m exhaustive --quick --threads 2 $(SEVERAL)

# An aarch64 machine under qemu, in a folder of the user's cache (ASSAY_ARM): docs/guide/arm.md. Where
# qemu or Debian's packages are out of reach the script says so and the tests skip. Where it is `make
# test-all` tries a sample on it.
arm: $(VENV)/.installed-dev
	@command -v qemu-aarch64 >/dev/null && command -v mmdebstrap >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && apt-get update -qq \
	&& apt-get install -y -qq --no-install-recommends qemu-user mmdebstrap >/dev/null; } || true
	bash conformance/arm.sh make $(BIN)/python || [ $$? = 3 ]

test-arm: arm
	ASSAY_ARM_ALL=1 $(BIN)/pytest conformance/kernel/test_arm.py conformance/kernel/test_linear_neon.py

test-deep: $(VENV)/.installed-dev
	ASSAY_DEEP=1 ASSAY_FUZZ=20000 $(BIN)/pytest conformance/ bench/tests/test_fleet.py

test-wheel: $(VENV)/.installed
	bash conformance/wheel.sh $(BIN)/python

# The peers that logits and text are compared with: docs/peers.md.
test-transformers: $(VENV)/.installed-transformers
	$(BIN)/pytest conformance/llama/test_transformers.py conformance/families/test_peers.py \
		conformance/powerinfer/test_sparsify.py conformance/powerinfer/test_statistics.py \
		conformance/convert/test_torch_file.py conformance/foreign/test_honest.py \
		conformance/foreign/test_triton.py conformance/cache/test_authors.py \
		conformance/foreign/test_verdicts.py::test_right_and_wrong_are_told_apart \
		conformance/foreign/test_verdicts.py::test_declared_rounding_sets_the_bound \
		bench/tests/test_exchange.py

test-peers: $(VENV)/.installed-peers
	$(BIN)/pytest conformance/llama/test_transformers.py conformance/llama/test_llama_cpp.py \
		conformance/perplexity/test_harness.py conformance/families/test_peers.py \
		conformance/speculation/test_mtp.py
	$(BIN)/pytest conformance/families/test_recurrent.py conformance/tokenizer -k llama_cpp
	LLAMA_CPP_LIB_PATH=$$($(BIN)/python -c 'import llama_cpp as l; print(l.__path__[0] + "/lib")') \
		$(BIN)/pytest conformance/foreign/test_ggml.py conformance/foreign/test_honest.py

peer-goldens: $(VENV)/.installed-peers
	$(BIN)/python -m conformance.llama.peers.make

# Measures; `card` the engine's figures against their goals (MODELS: files, by default what is
# embedded); `report` makes a page of the last run.
bench: $(VENV)/.installed-dev
	$(BIN)/pytest bench/ --benchmark

card: $(VENV)/.installed-dev
	$(BIN)/pytest bench/test_figures.py --benchmark $(foreach m,$(MODELS),--engine-model $(m))

bench-quick: $(VENV)/.installed-dev
	$(BIN)/pytest bench/ --benchmark --quick

report: $(VENV)/.installed-dev
	$(BIN)/assay report

# On a machine with a GPU: kernels judged, measured, peers (docs: python -m bench.gpu_check --help).
# Nothing is installed; without the environment above it takes what Python there is. FOLDER gets what
# is found, by default gpu-check in ASSAY_RESULTS or here. With KNOBS=1 knobs are measured instead.
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
gpu-check:
	$(GPU_PYTHON) -m bench.gpu_check $(if $(FOLDER),-o $(FOLDER)) $(if $(KNOBS),--knobs) \
		$(foreach m,$(MODELS),--model $(m))

# The report's tests look at it in Chromium; where there is none and none can be had, they skip.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && apt-get update -qq \
	&& apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; } \
	|| echo "no Chromium: the report is not looked at"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# The site of docs/, into site/; a warning is an error.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

check: lint types docs test

goldens: $(VENV)/.installed-dev
	$(BIN)/python -m data.golden.make

mutants: $(VENV)/.installed-dev
	$(BIN)/python -m conformance.mutants --count 300 --workers $(PROCESSES)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) (about a minute)"
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV), with what tests need (about a minute)"
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $@

$(VENV)/.installed-transformers: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet '$(TRANSFORMERS)'
	-$(BIN)/pip install --quiet 'triton>=3.2'  # for Linux; elsewhere its tests skip
	-$(BIN)/pip install --quiet 'flashinfer-bench>=0.1.2,<0.2'  # its classes read what it wrote
	touch $@

# GCC 12 miscompiles llama.cpp's AMX code.
$(VENV)/.installed-peers: $(VENV)/.installed-transformers
	CC=clang-19 CXX=clang++-19 $(BIN)/pip install --no-binary llama-cpp-python --editable '.[peers]'
	touch $@

clean:
	rm -rf $(VENV) build site *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
