# specgov: `make demo` shows it at work, `make test` proves it. Both set up what they need.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-e2e test-engine supply-chain image-check compat-latest bench bench-regret bench-machines bench-gpu soak soak-engine fuzz audit sbom lint format clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(f"specgov needs Python 3.11 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	@echo "setting up $(VENV) (about a minute, once)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

setup: $(STAMP)  ## the project's own environment in .venv

demo: $(STAMP)  ## a sidecar turning speculation down and up under a changing load (simulated engine)
	$(BIN)/specgov demo

test: lint supply-chain test-fast test-e2e test-engine  ## everything that .ci/run runs

lint: $(STAMP)  ## ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-fast: $(STAMP)  ## all tests that need neither the real SGLang nor programs of others
	$(BIN)/pytest -q -n auto -m 'not engine and not e2e and not image'

test-e2e: $(STAMP)  ## manifests, alerts, dashboards, status page: real kubectl, helm, Prometheus, Chromium
	$(BIN)/python tests/e2e/tools.py
	$(BIN)/pytest -q -m e2e

test-engine: $(STAMP)  ## the real SGLang on CPU (installs it once into its own cached environment)
	$(BIN)/pytest -q -m engine

image-check: $(STAMP)  ## build the container image, run it confined (podman; no registry; as root on Debian or Ubuntu)
	@echo "base: Debian's Python 3.11, in place of python:3.12-slim-bookworm; installs podman, runc, mmdebstrap if missing"
	$(BIN)/pytest -q -s -m image tests/e2e/test_image.py

compat-latest: $(STAMP)  ## what the newest SGLang release on the index would break (a job for a schedule)
	@$(BIN)/python -m tests.releases.latest

bench: $(STAMP)  ## what the hook costs a decode step, a decision takes; how fast and how true the simulator is; the published case
	$(BIN)/python -m tests.hooks.hook_cost
	$(BIN)/python -m tests.benchmarks.decide_speed
	$(BIN)/python -m tests.benchmarks.simulator_speed --seconds 600
	$(BIN)/python -m tests.benchmarks.simulator_error
	$(BIN)/python -m tests.benchmarks.published_case

WEEK_S ?= 604800
soak: $(STAMP)  ## a simulated week of one sidecar, larger worlds of leases and ranks, its cost (hours; WEEK_S=ticks)
	$(BIN)/python -m tests.soak.week --ticks $(WEEK_S)
	SPECGOV_SOAK=1 $(BIN)/pytest -q tests/hooks/test_interleavings.py
	$(BIN)/python -m tests.soak.cost

SWITCHES ?= 20000
soak-engine: $(STAMP)  ## the real SGLang on CPU, TP 2: 20000 switches of depth, the same on both ranks
	$(BIN)/python -m tests.engine.soak_ranks --switches $(SWITCHES)

FUZZ_S ?= 120
fuzz: $(STAMP)  ## coverage-guided fuzzing of parsers and settings, FUZZ_S seconds each; the whole API at length
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[fuzz]'
	for target in exposition answers plans wire settings; do \
	  $(BIN)/python -m tests.fuzz.guided $$target $(FUZZ_S) || exit 1; done
	SPECGOV_FUZZ_S=$(FUZZ_S) $(BIN)/pytest -q --timeout 3600 tests/fuzz

build/audit: pyproject.toml
	$(PYTHON) -m venv $@/product
	$@/product/bin/pip install --quiet --disable-pip-version-check .
	$@/product/bin/pip uninstall --quiet --yes setuptools pip
	$(PYTHON) -m venv $@/tools
	$@/tools/bin/pip install --quiet --disable-pip-version-check pip-audit cyclonedx-bom

AUDIT = $(PYTHON) -m tests.releases.advisories $(AUDIT_FLAGS) build/audit/tools/bin/pip-audit build/audit/product/lib/python*/site-packages
audit: build/audit  ## known vulnerabilities in what an installation brings along (asks PyPI's advisories)
	@$(AUDIT)

supply-chain: AUDIT_FLAGS = --may-skip
supply-chain: sbom audit  ## both; where the advisories cannot be reached, a line says so

sbom: build/audit  ## build/sbom.json: what an installation brings along, in CycloneDX
	build/audit/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-file build/sbom.json build/audit/product

TRACE ?= build/AzureLLMInferenceTrace_code.csv
bench-regret: $(STAMP)  ## decode time that policies waste, on an Azure trace (TRACE=file): about an hour
	$(BIN)/python -m tests.benchmarks.regret --trace $(TRACE) --out build/replay

bench-machines: $(STAMP)  ## the default policy on machines, acceptances and loads drawn at random: some minutes
	$(BIN)/python -m tests.benchmarks.any_machine --out build/machines

GPU_WORK ?= build/gpu
bench-gpu: $(STAMP)  ## what a GPU machine needs to run tests/gpu, into .gpu (see its README; downloads 460 MB)
	$(BIN)/pytest -q tests/gpu
	[ -e $(GPU_WORK)/bundle.tar.xz ] || tests/gpu/build_bundle.sh $(GPU_WORK) $(GPU_WORK)/work
	tests/gpu/stage.sh .gpu $(GPU_WORK)/bundle.tar.xz
	@echo "now transfer the checkout with .gpu, and there: .gpu/go.sh smoke"

format: $(STAMP)  ## format and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and caches of this checkout
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
