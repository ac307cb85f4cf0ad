# make train       install, then run the quickstart
# make test        lint, types and tests that are not marked slow
# make test-all    lint, types and all tests; what CI runs
# make peers       the originals of our worlds, for the tests that compare with them (1 to 3 minutes)
# make test-cluster  tests with Ray and vLLM in an environment of their own
# make test-attack   load, malformed requests, hostile connections and kills; loopback only, 5 to 30 minutes
# make docs        build the documentation site; fails on dead links and broken snippets
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
QUICKSTART ?= runs/quickstart
# Keep compiled bytecode between test processes, whatever the shell says.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# Types beside the tests: mypy has one core, and is done long before them.
check = @log=$$(mktemp); $(BIN)/mypy > $$log 2>&1 & types=$$!; $(PYTEST) $(1); tests=$$?; \
	wait $$types; types=$$?; cat $$log; rm $$log; exit $$((tests | types))

.PHONY: setup peers train test test-all test-cluster test-attack docs lint style clean

setup: $(READY)

# torch first and pinned: with an open range pip would take the newest CUDA build.
$(READY): requirements.txt pyproject.toml
	@echo "Installing into $(VENV) (torch is about 200 MB; a few minutes)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check torch==2.13.0
	@echo "Installing the other packages"
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

peers: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-peers.txt

# Resumes an interrupted quickstart.
train: $(READY)
	@if [ -f $(QUICKSTART)/settings.json ]; then $(BIN)/tacit train --resume $(QUICKSTART); \
	else $(BIN)/tacit train --config quickstart --out $(QUICKSTART); fi
	@$(BIN)/tacit eval $(QUICKSTART) --tokens
	@$(BIN)/tacit report $(QUICKSTART)

test: $(READY) style
	$(call check,-m "not slow")

test-all: $(READY) style
	$(call check,)

test-cluster:
	@PYTHON=$(PYTHON) .ci/test-cluster

test-attack: $(READY)
	$(BIN)/python tests/attack.py

docs: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check mkdocs-material==9.8.1
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(PYTEST) tests/docs

lint: $(READY) style
	$(BIN)/mypy

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .venv-cluster build *.egg-info
