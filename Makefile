# `make demo` runs the main job, `make test` the tests; both make .venv first. `make help` lists the rest.

.DEFAULT_GOAL := help
VENV := .venv
# What `python -m scripts.learn` compares (scripts/recipes.yaml).
LEARN := patterns precision precision-copying kernels warm-start
BIN := $(VENV)/bin
PYTHON_CODE := bigbird_ja tests testkit scripts docs/examples
STAMP := $(VENV)/.installed
ALL := $(VENV)/.installed-all
# TensorFlow 2.15, the last with TPUEstimator, has an environment of its own; so has what Kaggle's image ships.
OTHERS := .venv-estimator .venv-kaggle
# The other Pythons that are promised, with the same lock.
PYTHONS := .venv-3.12 .venv-3.13
# Two at a time, as most tests wait for TensorFlow in one thread; a file's tests share what they train.
# In the order of tests/conftest.py: what takes longest begins first.
WORKERS := -n 2 --dist loadfile --no-loadscope-reorder
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Without stored bytecode, each process compiles TensorFlow's Python files anew: 15 seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install install-all demo test test-slow test-estimator test-kaggle test-python-3.12 test-python-3.13 \
	wheel locks lint types audit mutants docs site clean probe soak size \
	bench-data bench-step bench-code bench-length bench-recipe bench-faults \
	bench-bad-input bench-cpu bench-leaks bench-clock bench-trim bench-restart $(addprefix bench-,$(LEARN))

help: ## list the targets
	@grep -hE '^[a-z0-9. -]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'
	@printf '  make bench-%-10s a comparison of scripts/recipes.yaml (hours)\n' $(LEARN)

install: $(STAMP) ## make .venv with everything in the lock, and bigbird-ja in it

install-all: $(ALL) ## and what a few tests need and is large: libtpu, PyTorch, a MeCab dictionary

$(STAMP): requirements/main.lock pyproject.toml scripts/make_venv.sh
	@scripts/make_venv.sh main $(VENV)
	@touch $@

$(ALL): $(STAMP) requirements/extra.lock
	@scripts/make_venv.sh extra $(VENV)
	@touch $@

$(OTHERS:=/.installed): .venv-%/.installed: requirements/%.lock pyproject.toml scripts/make_venv.sh
	@scripts/make_venv.sh $* .venv-$*
	@touch $@

$(PYTHONS:=/.installed): .venv-%/.installed: requirements/main.lock pyproject.toml scripts/make_venv.sh
	@scripts/make_venv.sh main-$* .venv-$*
	@touch $@

locks: $(STAMP) ## write the locks from pyproject.toml (UPGRADE=--upgrade: newest versions)
	@UV=$(BIN)/uv scripts/make_locks.sh $(UPGRADE)

demo: $(STAMP) ## every step on a generated corpus, two to four minutes on two cores
	@$(BIN)/bigbird-ja demo

test: $(STAMP) ## the tests
	@$(BIN)/python -m pytest $(WORKERS) $(PYTEST)

test-slow: $(ALL) ## the long tests: the guide, the examples, kills, every fault (20 to 45 minutes); notebooks: test-kaggle
	@$(BIN)/python -m pytest $(WORKERS) -m slow --durations 20 --ignore tests/docs/test_notebooks.py $(PYTEST)

test-estimator: .venv-estimator/.installed ## what needs TPUEstimator, or differs between versions, beside TensorFlow 2.15
	@.venv-estimator/bin/python -m pytest $(WORKERS) -m "(estimator or both) and not slow" $(PYTEST)

test-kaggle: .venv-kaggle/.installed ## the notebooks whole, and the engine, in the packages of Kaggle's TPU image
	@.venv-kaggle/bin/python -m pytest $(WORKERS) -m "" -k "notebooks or protocol" $(PYTEST) tests/docs/test_notebooks.py tests/train/engines/test_protocol.py

test-python-3.12 test-python-3.13: test-python-%: .venv-%/.installed ## the engine and the checkpoints, on another Python that is promised
	@.venv-$*/bin/python -m pytest $(WORKERS) -m "both and not slow" -k "not muon" $(PYTEST) tests/train/engines tests/test_releases.py

wheel: $(STAMP) ## build dist/*.whl, and run its doctor and demo from a new environment elsewhere
	@scripts/check_wheel.sh

lint: $(STAMP) ## ruff; language; import order; links of the pages
	@$(BIN)/ruff check $(PYTHON_CODE)
	@$(BIN)/ruff format --check $(PYTHON_CODE)
	@! grep -rnE '^ *r?"""(What|Which|How|Where)\b' bigbird_ja --include='*.py' # a docstring begins with a verb, a property's with a noun or "Whether"
	@$(BIN)/python -m scripts.check_language
	@$(BIN)/codespell $(PYTHON_CODE) docs notebooks .github .ci Makefile pyproject.toml mkdocs.yml *.md
	@$(BIN)/lint-imports
	@$(SITE) --site-dir out/site

types: $(STAMP) ## mypy
	@$(BIN)/mypy

mutants: $(STAMP) ## changes each expression of the modules that delete, rent, lock, commit and mask: do tests notice (hours)
	@$(BIN)/mutmut run --max-children 2
	@$(BIN)/mutmut results

audit: $(STAMP) ## known vulnerabilities of the locked packages (asks the network)
	@$(BIN)/pip-audit --requirement requirements/main.lock --disable-pip --no-deps

bench-data: $(STAMP) ## make-data, tokenize and the input pipeline against the ancestor
	@$(BIN)/python -m scripts.bench_data

bench-step: $(ALL) ## TPU cycles and memory of the train step against the ancestor's, on slices, by length (hours; QUICK=--quick)
	@$(BIN)/python -m scripts.bench_step $(QUICK)

bench-code: $(ALL) ## the train step by machine code on v5e and v6e, against the ancestor's
	@$(BIN)/python -m scripts.bench_step --only "machine code"

bench-length: $(ALL) ## cost against sequence length, BigBird and ModernBERT, v5e and v6e; draws the docs' plot
	@$(BIN)/python -m scripts.bench_step --only tokens

bench-clock: $(ALL) ## public programs priced by machine code against the times of real TPUs (ONLY: part of a name); draws the docs' picture
	@$(BIN)/python -m scripts.clock --only "$(ONLY)"

bench-trim: $(ALL) ## what `trim` saved (SOURCE, TRIMMED: the folders): parameters, a step on v5e and on this CPU
	@$(BIN)/python -m scripts.bench_trim $(SOURCE) $(TRIMMED)

bench-cpu: $(ALL) ## the train step next to transformers' own classes, in turns on this CPU (half an hour, idle)
	@$(BIN)/python -m scripts.bench_cpu $(if $(ONLY),--only $(ONLY))

bench-restart: $(STAMP) ## from a killed process to its first new step, with cached programs and without
	@$(BIN)/python -m scripts.bench_restart

bench-recipe: $(ALL) ## architecture, rates, masks, ...: what learns better at equal tokens (many hours; goes on from WORK_DIR and docs/images, ANEW=--anew repeats these)
	@$(BIN)/python -m scripts.learn recipe-rates --work_dir $(or $(WORK_DIR),out/recipe)
	@$(BIN)/python -m scripts.learn recipe-parts $(ANEW) --work_dir $(or $(WORK_DIR),out/recipe)
	@$(BIN)/python -m scripts.learn recipe $(ANEW) --work_dir $(or $(WORK_DIR),out/recipe)

$(addprefix bench-,$(LEARN)): bench-%: $(ALL)
	@$(BIN)/python -m scripts.learn $*

probe: $(STAMP) ## train the long-context probe (twenty minutes) and draw its curve for the docs
	@$(BIN)/python -m scripts.learn probe

bench-faults: $(STAMP) ## every fault of a bucket against every operation: ridden out or ended cleanly
	@$(BIN)/python -m pytest -m "" $(WORKERS) tests/storage/test_gcs.py

bench-bad-input: $(STAMP) ## bad input of every kind: refused with one line, nothing written
	@BIGBIRD_JA_HOSTILE_ALL=1 $(BIN)/python -m pytest -q -n 2 tests/test_hostile.py

bench-leaks: $(STAMP) ## 10,000 days of rented runs in which anything fails: nothing may be left (minutes)
	@BIGBIRD_JA_WALKS=2500 $(BIN)/python -m pytest --timeout 3600 -n 2 tests/testkit/test_explore.py -k walk

soak: $(STAMP) ## fifty and more SIGKILLs in every phase, on disk, on a loopback bucket, and of a pod (ENGINE=pjrt)
	@BIGBIRD_JA_KILLS=60 BIGBIRD_JA_ENGINE=$(or $(ENGINE),auto) $(BIN)/python -m pytest -rP -m slow tests/testkit/test_soak.py

size: $(STAMP) ## files and lines of code by package, and the totals
	@$(BIN)/python -m scripts.size

docs: $(STAMP) ## write what pages say of the code: commands and settings
	@$(BIN)/python -m scripts.make_docs

site: $(STAMP) ## build site/, the pages with a search in both languages; a link that leads nowhere ends it
	@$(SITE)

clean: ## remove what the targets made
	rm -rf $(VENV) $(OTHERS) $(PYTHONS) mutants build dist out site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
