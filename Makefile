# Eight verbs. `make demo` and `make test` do all of their own set-up, in .venv and the user's cache.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
JOBS ?= 2
BIN := $(VENV)/bin
SOURCES := $(shell find bridge pbs_adapter deploy examples -type f -not -name '*.pyc') pyproject.toml README.md
CODE := bridge pbs_adapter tests

.PHONY: help demo test check bench docs fmt build clean
help:
	@echo 'make demo    a control plane, two PBS clusters, the agent and five pods (KEEP=1 leaves them running)'
	@echo 'make test    every test (T="-k name" for some)'
	@echo 'make check   ruff, mypy, layers, Python 3.6 for what runs on clusters, docs'
	@echo 'make bench   figures    make docs   the docs as a site    make fmt   format    make build   the wheel    make clean'

$(VENV)/.locked: requirements.lock
	@echo 'hpc-bridge: making $(VENV) from requirements.lock'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

$(VENV)/.wheel: $(VENV)/.locked $(SOURCES)
	@rm -rf build/dist
	@$(BIN)/python -m build --wheel --no-isolation --outdir build/dist . > build.log 2>&1 || { cat build.log; rm build.log; exit 1; }; rm build.log
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall build/dist/*.whl
	@touch $@

demo: $(VENV)/.wheel
	@$(BIN)/hpc-bridge demo $(if $(KEEP),--keep)

test: $(VENV)/.wheel
	@$(BIN)/python -m bridge.testbed.prepare
	@$(BIN)/pytest -n $(JOBS) --dist loadfile $(if $(T),$(T),--ignore=tests/containers)
	@$(if $(T),true,$(BIN)/pytest tests/containers)  # they share one engine

check: $(VENV)/.wheel
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vermin --quiet --no-tips --violations -t=3.6- pbs_adapter/remote
	$(BIN)/python -m bridge.cli.document --check
	$(BIN)/mkdocs build --quiet --strict -f docs/_site/mkdocs.yml -d $(CURDIR)/build/site

bench: $(VENV)/.wheel
	@$(BIN)/python -m tests.bench

docs: $(VENV)/.wheel
	@$(BIN)/python -m bridge.cli.document
	@$(BIN)/mkdocs build --quiet --strict -f docs/_site/mkdocs.yml -d $(CURDIR)/build/site
	@echo 'build/site/index.html'

fmt: $(VENV)/.locked
	@$(BIN)/ruff check --fix --quiet $(CODE) || true
	@$(BIN)/ruff format --quiet $(CODE)

build: $(VENV)/.wheel
	@ls build/dist/*.whl

clean:
	@rm -rf build $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
