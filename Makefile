# `make` lists the targets. Every target sets up what it needs; a second run skips what is done.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup demo engine serve test soak lint docs speedups clean
.DELETE_ON_ERROR:

# The run: MODEL is a name in checkpoints/, a path or a hub id; SPEC a speculation method; DRAFT a draft checkpoint;
# TARGET a build target. ARGS is passed on to trt-spec, for example ARGS="--set build.max_batch_size=4 -v".
MODEL ?= smollm2-135m
SPEC ?= ngram
DRAFT ?=
TARGET ?=
ARGS ?=
# Where the environment comes from: any Python 3.10 to 3.12; TORCH and PIP_ARGS choose another torch build,
# for example TORCH=torch==2.13.0+cpu PIP_ARGS="--extra-index-url <an index that has it>".
PYTHON ?=
TORCH ?= torch==2.13.0
PIP_ARGS ?=
JOBS ?= 2

VENV := .venv
STAMP := $(VENV)/.setup-done
TRT_SPEC := $(VENV)/bin/trt-spec
RUN_FLAGS = --model '$(MODEL)' --method '$(SPEC)' $(if $(DRAFT),--draft '$(DRAFT)') $(if $(TARGET),--build-target '$(TARGET)') $(ARGS)

help:  ## List the targets (the default)
	@echo "Usage: make TARGET [VARIABLE=value ...]"
	@echo
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-10s %s\n", $$1, $$2 }'
	@echo
	@echo "  MODEL=$(MODEL) SPEC=$(SPEC) DRAFT=$(DRAFT) TARGET=$(TARGET) ARGS=$(ARGS)   the run of engine and serve"
	@echo "  PYTHON=$(PYTHON) TORCH=$(TORCH) PIP_ARGS=$(PIP_ARGS)   the environment of setup"

setup: $(STAMP)  ## Make .venv and install everything into it
	@echo "setup: $(VENV) is ready"

$(STAMP): pyproject.toml setup.py $(wildcard trt_spec/runtime/kernels/*.cc trt_spec/runtime/kernels/kernels.*)
	@python=$$(scripts/find-python $(PYTHON)) || exit $$?; \
	echo "setup: .venv from $$python ($$($$python --version 2>&1)); a few minutes the first time"; \
	$$python -m venv $(VENV) && \
	echo "setup: $(TORCH)" && scripts/pip-install $(VENV)/bin/python $(VENV)/pip.log $(PIP_ARGS) '$(TORCH)' && \
	echo "setup: trt-spec with the extras serve, demo, test and lint" && \
	scripts/pip-install $(VENV)/bin/python $(VENV)/pip.log $(PIP_ARGS) -e '.[serve,demo,test,lint]' && \
	touch $@

demo: $(STAMP)  ## Checkpoint, engines, model repositories, tritonservers, clients, and a table of the gain
	@$(TRT_SPEC) demo $(ARGS)

engine: $(STAMP)  ## Build engines/<run>/ and emit triton_repo/<run>/ (MODEL, SPEC, DRAFT, TARGET)
	@$(TRT_SPEC) build $(RUN_FLAGS)
	@$(TRT_SPEC) emit $(RUN_FLAGS)

serve: engine  ## The same, then tritonserver in the foreground; Ctrl-C drains and stops it
	@$(TRT_SPEC) serve $(RUN_FLAGS)

# Two runs: the quick tests share the cores, the ones that start a server have them alone.
test: $(STAMP)  ## Run all tests (JOBS workers, then the server tests one by one)
	@$(TRT_SPEC) fetch smollm2-135m
	@status=0; \
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -n $(JOBS) -m "not server and not nightly and not soak" tests || status=$$?; \
	$(VENV)/bin/python -m pytest -q -m "server and not nightly and not soak" tests || status=$$?; \
	exit $$status

soak: $(STAMP)  ## Run the long tests of the served model, minutes of abuse on real servers
	@$(VENV)/bin/python -m pytest -q -m soak tests

lint: $(STAMP)  ## Check style and formatting
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

docs: $(STAMP)  ## Write the generated tables and schemas of the documentation again
	@$(VENV)/bin/python -m scripts.docs.update
	@$(VENV)/bin/python -m scripts.docs.schemas

speedups: $(STAMP)  ## Measure and certify every way to draft for the demo target, and write the README's table of it
	@$(TRT_SPEC) bench smollm2-135m-eagle3 --what methods --certify --save docs/speedups.json $(ARGS)
	@$(VENV)/bin/python -m scripts.docs.update

clean:  ## Remove built engines, model repositories and caches; .venv and checkpoints stay
	@find engines triton_repo -mindepth 1 -maxdepth 1 ! -name README.md -exec rm -rf {} +
	@rm -rf .pytest_cache .ruff_cache .hypothesis
	@find trt_spec tests -name __pycache__ -type d -prune -exec rm -rf {} +
