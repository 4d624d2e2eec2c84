# `make demo` and `make test` need nothing but a fresh Debian 12 or Ubuntu 24.04, and do nothing twice.
# `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= python3
JOBS ?= $(shell nproc)
BROWSER ?= chromium
PACKAGES ?= $(shell sed '/^\#/d' packages.txt)
MODEL ?=
FUZZ_SECONDS ?= 10

VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
BUILD := build/release
WERROR := $(if $(CI),ON,OFF)
CONFIGURE := cmake --log-level=NOTICE -DMOETAPE_WERROR=$(WERROR) --preset
COMPILE := cmake --build --parallel $(JOBS) --preset
CTEST := ctest --no-tests=error --parallel $(JOBS) --preset
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --maxprocesses 8 --dist loadgroup

NVCC := $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc 2>/dev/null | head -n 1)
GPU_PYTHON ?= $(BIN)/python# for test-gpu: with moetape built for CUDA, and a torch for it
GPU_TEST := build/gpu-test/tests/gpu/moetape_gpu_test

CXX_FILES = $(shell find include src python/bindings report cli tests fuzz bench examples engines -name '*.h' -o -name '*.cc' -o -name '*.cu' 2>/dev/null)
BENCH_ENV := GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4000000000:glibc.malloc.trim_threshold=8000000000

.PHONY: help setup peers configure python build browser demo test test-release test-python gpu-test test-vllm smoke-vllm test-sglang smoke-sglang test-cuda test-gpu asan tsan fuzz nightly bench lint tidy format clean distclean

help:
	@sed -n 's/^\([a-z-]*\):.*## /  make \1 \t/p' Makefile | expand -t 20

setup: build/.packages $(VENV)/.requirements  ## packages and .venv, what is missing of them

build/.packages: packages.txt tools/install_packages
	@mkdir -p build
	@tools/install_packages $(PACKAGES)
	@touch $@

$(VENV)/.requirements: requirements-dev.txt tools/make_venv | build/.packages
	@tools/make_venv "$(PYTHON)" "$(VENV)" requirements-dev.txt
	@echo "$(CURDIR)/python" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/moetape-sources.pth"
	@touch $@

.cache/peers/.complete: tests/peers.txt tools/fetch_peers | $(VENV)/.requirements
	@tools/fetch_peers $(BIN)/python .cache/peers tests/peers.txt
	@touch $@

peers: .cache/peers/.complete  ## packages of engines and trainers whose code tests call, into .cache/peers

configure: setup
	@$(CONFIGURE) release -DMOETAPE_BUILD_PYTHON=ON -DPython_EXECUTABLE=$(BIN)/python

python: configure  ## the Python extension, beside the sources that .venv imports
	@$(COMPILE) release --target moetape_python

build: configure  ## library, C++ tests and the Python extension, into build/release
	@$(COMPILE) release

demo: python  ## serve, record, ship and replay a small model (MODEL=folder for a checkpoint of yours)
	@$(BIN)/python examples/demo.py $(if $(MODEL),--model "$(MODEL)")

test: test-release test-python test-cuda asan tsan fuzz  ## everything
	@echo "moetape: all tests passed"

test-release: build
	@$(CTEST) release

browser:
	@tools/install_packages $(BROWSER)

test-python: build peers browser  ## Python tests (BROWSER= where another Chromium is at hand)
	@$(PYTEST)

gpu-test: setup
	@$(CONFIGURE) gpu-test
	@$(COMPILE) gpu-test --target moetape_gpu_test

.venv-vllm/.requirements: tests/engines/vllm/requirements.txt tools/make_venv tools/link_sources pyproject.toml | build/.packages
	@tools/make_venv "$(PYTHON)" .venv-vllm tests/engines/vllm/requirements.txt --no-deps
	@tools/link_sources .venv-vllm
	@touch $@

test-vllm: python .venv-vllm/.requirements  ## inside real vLLM, on the CPU (its own environment, 6 GB of disk)
	@.venv-vllm/bin/python -m pytest tests/engines/vllm

smoke-vllm: python .venv-vllm/.requirements  ## one start of it
	@.venv-vllm/bin/python -m pytest tests/engines/vllm -m smoke

.venv-sglang/.requirements: tests/engines/sglang/requirements.txt tools/make_venv tools/link_sources pyproject.toml $(VENV)/.requirements
	@tools/make_venv "$(PYTHON)" .venv-sglang tests/engines/sglang/requirements.txt --no-deps
	@tools/link_sources .venv-sglang "$(VENV)" tests/engines/sglang/standin
	@touch $@

test-sglang: python peers .venv-sglang/.requirements  ## inside real SGLang, on the CPU (its own environment, over .venv)
	@.venv-sglang/bin/python -m pytest tests/engines/sglang

smoke-sglang: python peers .venv-sglang/.requirements  ## one start of it
	@.venv-sglang/bin/python -m pytest tests/engines/sglang -m smoke

test-cuda: $(if $(NVCC),gpu-test)  ## compile for CUDA where there is nvcc, and run what needs no GPU
	@$(if $(NVCC),DRY_RUN=1 OUT=build/gpu-test/dry-run tests/gpu/run $(GPU_TEST),echo "test-cuda: no nvcc here; the kernels' bodies ran on the CPU alone")

test-gpu: gpu-test  ## what only a GPU can prove, and the benchmark there, into OUT (bench/results)
	@tests/gpu/run $(GPU_TEST)
	@$(GPU_PYTHON) -m pytest -n0 -rs tests/python/test_core_recorder_cuda.py tests/python/test_engine_transformers_cuda.py tests/python/test_trainer_transformers_cuda.py

asan: setup  ## C++ tests under the address and undefined-behaviour sanitizers
	@$(CONFIGURE) asan
	@$(COMPILE) asan
	@$(CTEST) asan

tsan: setup  ## the tests of racing threads under the thread sanitizer
	@$(CONFIGURE) tsan
	@$(COMPILE) tsan --target moetape_race_tests
	@$(CTEST) tsan --label-regex race

fuzz: setup  ## every decoder and the reader of tapes against libFuzzer, FUZZ_SECONDS each (10)
	@$(CONFIGURE) fuzz
	@$(COMPILE) fuzz
	@fuzz/run build/fuzz/fuzz $(FUZZ_SECONDS) $(JOBS)

nightly: export MOETAPE_TEST_OPS := 1000000
nightly: export MOETAPE_TEST_FULL := 1
nightly: FUZZ_SECONDS := 600
nightly: build peers browser fuzz test-sglang  ## the random tests with ten times the operations, the command line under sanitizers
	@$(CTEST) release
	@$(PYTEST)
	@$(CONFIGURE) asan -DMOETAPE_BUILD_CLI=ON
	@$(COMPILE) asan --target moetape_cli
	@MOETAPE_CLI=$(CURDIR)/build/asan/cli/moetape $(PYTEST) tests/python/test_cli*.py -k "not bounded_memory"
	@$(MAKE) test-vllm

bench: setup  ## benchmarks against what engines do today
	@$(CONFIGURE) release -DMOETAPE_BUILD_PYTHON=ON -DPython_EXECUTABLE=$(BIN)/python -DMOETAPE_BUILD_BENCH=ON
	@$(COMPILE) release
	@for program in $$(find $(BUILD) -name 'moetape_*_bench' -type f | sort); do $(BENCH_ENV) "$$program"; done
	@$(BIN)/python bench/peers.py
	@$(BIN)/python bench/peers.py --plain-malloc

lint: setup  ## ruff, mypy and clang-format, without changing anything
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)

tidy: configure  ## clang-tidy over the library's sources (minutes)
	@tools/install_packages clang-tidy-19
	@clang-tidy-19 --quiet -p $(BUILD) $$(find src -name '*.cc' ! -name '*_test.cc' ! -name '*_bench.cc')

format: setup  ## lay out Python and C++ as the project does
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CXX_FILES)

clean:  ## remove what was built
	@rm -rf build python/moetape/*.so

distclean: clean  ## and .venv
	@rm -rf .venv
