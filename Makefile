# make train   set up and run the quickstart        make test          set up, lint, type-check and test
#                                                   make test-cluster  test with Ray and vLLM, in an environment of its own
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
QUICKSTART ?= runs/quickstart

.PHONY: setup train test test-cluster lint clean

setup: $(READY)

# torch is installed before anything that wants it, at a pinned version: left to a range, pip takes the newest build.
$(READY): requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# A quickstart that was interrupted goes on where it was.
train: $(READY)
	@if [ -f $(QUICKSTART)/settings.json ]; then $(BIN)/tacit train --resume $(QUICKSTART); \
	else $(BIN)/tacit train --config quickstart --out $(QUICKSTART); fi
	@$(BIN)/tacit eval $(QUICKSTART) --tokens
	@$(BIN)/tacit report $(QUICKSTART)

# What one of the tests' processes has compiled, the next need not: bytecode is kept, whatever the shell says.
test: $(READY) lint
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

test-cluster:
	@PYTHON=$(PYTHON) .ci/test-cluster

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .venv-cluster build *.egg-info
