# `make help` lists what there is. Everything happens in .venv, which `make install` makes.

SHELL := /bin/bash
# the first that runs and is new enough; 3.11 is what the pinned versions are tested with
RECENT := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for name in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$name -c '$(RECENT)' 2>/dev/null && command -v $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin
COVERAGE := .coverage.json
COVERAGE_ALONE := .coverage-alone.json
COVERAGE_FLOOR ?= 90
# two processes for two cores would often wait for services; see tests/kits/parallel/side_by_side.py
JOBS ?= 4
# yes: these processes are forked from one that has imported all tests; empty: they are xdist's, which each import them
FORKED ?= yes
SIDE_BY_SIDE = $(if $(FORKED),,-n $(JOBS) --dist loadfile --no-loadscope-reorder)
# tests that measure time run when no other runs: forked processes see to it, xdist's get them in a second run
BESIDE = $(if $(FORKED),, and not alone)
# tests without a marker that needs a machine or a time of its own
ORDINARY := not compose and not gpu and not models and not clients and not guests
# tests outside of tests/chaos that have a long form, too
LONG_FORMS := tests/e2e/test_cutoffs.py tests/e2e/test_overflow.py tests/e2e/clients/test_bad_demands.py \
	tests/integration/engine/test_engine_fork_server.py tests/unit/engine/adapters/test_adapter_families.py \
	tests/unit/router/models/test_router_model_histories.py tests/unit/shared/limits/test_leases.py \
	tests/unit/worker/grammars/test_worker_schema_enforcement.py tests/unit/worker/grammars/test_worker_grammar_walks.py \
	tests/unit/worker/text/test_worker_answer_parser.py tests/unit/worker/text/test_worker_call_forms.py
# how far `make compile` lets the C compiler optimise; 0 takes less than half of its CPU time, for tests
LEVEL ?= 2
COMPILED_TESTS := tests/unit/client tests/unit/gateway tests/unit/router tests/unit/shared tests/unit/worker tests/contract
# these take half of the CPU time, and nothing of what they test is compiled; the corpus is sent to compiled gateways by
# `make test`, too, whose stacks also have compiled routers and leaders
UNCOMPILED := tests/contract/corpus $(addprefix tests/contract/stores/test_,adapter_store.py block_store.py \
	lease_store.py response_store.py session_store.py) \
	$(addprefix tests/contract/test_,codec.py golden.py heartbeat_carrier.py plain_data.py redis_acl.py session_account.py \
	session_lives.py session_quotas.py) \
	$(addprefix tests/unit/gateway/grpc/test_grpc_,answers.py protocol.py tensors.py) \
	tests/unit/shared/bus/test_shared_codec_bounds.py tests/unit/shared/limits \
	$(addprefix tests/unit/shared/accounts/test_account_,changes.py forms.py keys.py register.py) \
	$(addprefix tests/unit/shared/http/test_shared_,giving_way.py joined_head.py open_network.py tcp_table.py web.py) \
	$(addprefix tests/unit/shared/telemetry/test_,memory_trace.py otlp_encoding.py shared_oom_kills.py) \
	$(addprefix tests/unit/shared/test_,compiled_modules.py live_shares.py private_names.py shared_freed_memory.py \
	shared_kv_hash.py shared_lifecycle.py shared_names.py) \
	tests/unit/worker/forking tests/unit/worker/gguf tests/unit/worker/grammars tests/unit/worker/heartbeats \
	tests/unit/worker/host_kv tests/unit/worker/kv_tier/test_worker_kv_rank_blocks.py tests/unit/worker/model_files tests/unit/worker/orchestrator \
	$(addprefix tests/unit/worker/text/test_worker_,call_forms.py control_tokens.py gguf_byte_level.py gguf_golden.py \
	gguf_pieces.py template_guard.py template_losses.py template_shapes.py)
WHEEL_PLATFORM ?= $(subst -,_,$(shell uname -s | tr A-Z a-z)-$(shell uname -m))
INPUTS := pyproject.toml constraints.txt
# where torch comes from on a machine without an NVIDIA driver; empty: from pip's own index, with CUDA
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
NATIVE := services/worker/engine/native
MEASURED := $(BIN)/python -W "ignore:Unable to activate pytest branch coverage:RuntimeWarning" -m slipcover

# An environment that forbids bytecode would have hundreds of test processes compile the whole tree again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install dev serve test test-again chaos soak test-models test-clients test-guests test-gpu compile test-compiled test-compose check format docs screenshots site wheel client-wheel release regress bench pin-images newest audit sbom clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# a make of its own, whose targets no other one makes at the same time
install: $(BIN)/python ## make .venv, install what serving needs, compile the kernels meanwhile (at once when nothing changed)
	@$(MAKE) --no-print-directory -j2 $(VENV)/.installed $(VENV)/.kernels-best

dev: $(VENV)/.installed-dev $(VENV)/.kernels $(VENV)/.prometheus ## the same with the tools for tests and checks (-j2: at the same time)

serve: install ## install, then start the whole stack on this machine (Ctrl-C ends it)
	@exec $(BIN)/ryz up $(ARGS)

test: dev ## the tests that need neither Docker nor a GPU, with coverage (ARGS="tests/unit/router -x": pytest alone, with these)
ifdef ARGS
	$(BIN)/python -m pytest -m "$(ORDINARY)" $(ARGS)
else
	@$(if $(FORKED),RYZ_TEST_PROCESSES=$(JOBS)) $(MEASURED) --out $(COVERAGE) -m pytest -m "$(ORDINARY)$(BESIDE)" $(SIDE_BY_SIDE)
ifndef FORKED
	@$(MEASURED) --out $(COVERAGE_ALONE) -m pytest -m "$(ORDINARY) and alone"
endif
	@$(MEASURED) --merge $(COVERAGE) $(if $(FORKED),,$(COVERAGE_ALONE)) --out $(COVERAGE) --skip-covered --fail-under $(COVERAGE_FLOOR)
endif

test-again: dev ## what failed in the last `make test`, alone; says nothing of why it failed beside others
	$(BIN)/python -m pytest -m "$(ORDINARY)" --last-failed --last-failed-no-failures none
	@$(MEASURED) --merge $(COVERAGE) --out $(COVERAGE) --skip-covered --fail-under $(COVERAGE_FLOOR)

chaos: dev ## the same faults as in `make test`, for as long as it takes to trust them: an hour or two (FIGURES: a file for the counts)
	RYZ_CHAOS=full RYZ_CHAOS_FIGURES=$(FIGURES) $(BIN)/python -m pytest tests/chaos $(LONG_FORMS) $(ARGS)
	RYZ_CHAOS=full $(BIN)/python -m pytest -m "hypothesis and $(ORDINARY)" -n $(JOBS) --dist loadfile tests/unit tests/contract tests/integration $(ARGS)

test-models: dev ## every supported architecture in every mode against transformers; `make test` runs a cut of it
	$(BIN)/python -m pytest -m models -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-clients: dev ## client libraries of others against a real model: those of `make test`, and eleven in environments of their own; Claude Code and Codex (three need Node.js, one Python 3.13)
	$(BIN)/python -m pytest -m "" tests/clients tests/e2e/clients/test_clients.py $(ARGS)

test-guests: dev ## the contract of the engine port with engines of others, and what is tested with them alone
	$(BIN)/python -m pytest -m guests $(ARGS)

test-gpu: dev ## the tests that need a CUDA device and a CUDA build of torch
	$(BIN)/python -m pytest -m gpu $(ARGS)

compile: $(VENV)/.installed-dev ## compile what each request and step goes through with mypyc, in a minute or two: 1.2 to 1.3 times the requests a second
	$(BIN)/python -m tools.compile_modules --level $(LEVEL)

test-compiled: dev compile ## the unit tests of what is compiled, with the compiled modules in place of their sources
	RYZ_TEST_PROCESSES=$(JOBS) $(BIN)/python -m pytest -p tests.kits.compiled -m "$(ORDINARY) and not sources" $(COMPILED_TESTS) $(addprefix --ignore=,$(UNCOMPILED)) $(ARGS)

test-compose: dev ## the tests of the containers; needs a Docker engine
	$(BIN)/python -m pytest -m compose $(ARGS)

check: dev ## format, lint, types, import rules, generated docs and names in prose
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.docs --check

format: dev ## put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: dev ## write the generated pages anew
	$(BIN)/python -m tools.docs

screenshots: dev ## make the pictures of the pages anew, from a stack of its own (needs Chromium)
	$(BIN)/python -m tools.pages.screenshots

site: dev ## build the pages of docs/ as a site in build/site, every link checked (mkdocs-material, installed for it)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[site]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

wheel: $(BIN)/python ## build a wheel with the kernels of all processors and the demo model, in dist/ (WHEEL_PLATFORM: its platform tag)
	@$(BIN)/python -m services.worker.engine.native.build --all --fetch-compiler
	@rm -rf build/lib build/bdist.*
	$(BIN)/python -m pip wheel --disable-pip-version-check --no-deps --wheel-dir dist \
		--config-settings=--build-option=bdist_wheel --config-settings=--build-option=--plat-name=$(WHEEL_PLATFORM) .

release: dev ## make wheels, sdists, images, bills of materials and SHA256SUMS in dist/, from the tag that is checked out (ARGS: --no-images)
	@$(BIN)/python -m tools.release $(ARGS)

client-wheel: dev ## build sdist and wheel of ryzanstein-client, for services that only ask, in dist/
	$(BIN)/python -m tools.client_package dist

regress: install ## this checkout beside another commit, in turns, with a verdict for each figure (ARGS="--base COMMIT --json FILE")
	$(BIN)/python -m benchmarks.regress $(ARGS)

bench: install ## measure the serving path on this machine (ARGS: options for `ryz bench serving`)
	$(BIN)/ryz bench serving $(ARGS)

soak: install ## a stack under mixed load with a random fault every minute for HOURS=2, with a report and plots in build/soak (ARGS: options for `ryz bench soak`)
	$(BIN)/ryz bench soak --hours $(or $(HOURS),2) -o build/soak $(ARGS)

pin-images: ## write the images of compose.yaml into .env by their digests in the registry; again to renew them
	@$(or $(PYTHON),python3) deploy/pin_images.py

newest: dev ## the tests of own code that extends or replaces libraries, with their newest versions in build/newest (LIBRARIES="uvicorn==0.53.0": with these)
	@$(BIN)/python -m tools.newest $(LIBRARIES)

audit: dev ## ask for known vulnerabilities of all pinned packages (ARGS: such as --osv-url=URL); no answer is a failure
	$(BIN)/python -m deploy.audit $(ARGS)

sbom: dev ## write what .venv has from PyPI into build/sbom.json (CycloneDX)
	@mkdir -p build
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o build/sbom.json $(BIN)/python

clean: ## remove .venv, caches and the state of stacks
	rm -rf $(VENV) .ryz .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage.* build *.egg-info $(NATIVE)/build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@python="$(PYTHON)"; test -n "$$python" || { \
		echo "No Python 3.11 or newer was found: install one, or call make with PYTHON=/path/to/python3.11."; exit 1; }; \
	"$$python" -c '$(RECENT)' || { \
		echo "$$python is $$("$$python" --version 2>&1), but 3.11 or newer is needed: give another with PYTHON=..."; exit 1; }; \
	"$$python" -m venv $(VENV)

$(VENV)/.installed: $(INPUTS) | $(BIN)/python
	@$(BIN)/python deploy/install_torch.py "$(TORCH_INDEX)"
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[worker,local]'
	@touch $@

# a third of the modules is ever imported, and these are compiled then
$(VENV)/.installed-dev: $(INPUTS) | $(BIN)/python
	@$(BIN)/python deploy/install_torch.py "$(TORCH_INDEX)"
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt -e '.[worker,local,dev]'
	@touch $(VENV)/.installed $@

# Debian's package, unpacked: needs no root; without it, tests of alerts and boards say so and are skipped
$(VENV)/.prometheus: tools/debian/prometheus.py | $(BIN)/python
	@$(BIN)/python -m tools.debian.prometheus && touch $@ || true

# without a compiler, one is fetched from PyPI for the time being; without a network, ranks serve with the plain path
# the variant that ranks use; tests compare it with the others that the machine can run
$(VENV)/.kernels $(VENV)/.kernels-best: $(NATIVE)/build.py $(wildcard $(NATIVE)/src/* $(NATIVE)/src/*/*) | $(BIN)/python
	@set -o pipefail; $(BIN)/python -m services.worker.engine.native.build $(if $(filter %-best,$@),--best) --fetch-compiler | cat # lines: pip has the terminal
	@touch $@
