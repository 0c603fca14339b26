# `make demo` runs the main job, `make test` the tests; both make .venv first. `make help` lists the rest.

.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install demo test test-slow lint types audit clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

install: $(STAMP) ## make .venv with everything in the lock, and bigbird-ja in it

$(STAMP): requirements.lock pyproject.toml scripts/make_venv.sh
	@scripts/make_venv.sh $(VENV)
	@touch $@

demo: $(STAMP) ## the whole road on a generated corpus, under five minutes on two cores
	@$(BIN)/bigbird-ja demo

test: $(STAMP) ## the tests (the slow ones: make test-slow)
	@$(BIN)/python -m pytest

test-slow: $(STAMP) ## the tests that take minutes
	@$(BIN)/python -m pytest -m slow

lint: $(STAMP) ## ruff, lint and format
	@$(BIN)/ruff check bigbird_ja tests scripts
	@$(BIN)/ruff format --check bigbird_ja tests scripts

types: $(STAMP) ## mypy
	@$(BIN)/mypy

audit: $(STAMP) ## known vulnerabilities of the locked packages (asks the network)
	@$(BIN)/pip-audit --requirement requirements.lock --disable-pip --no-deps

clean: ## remove what the targets made
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
