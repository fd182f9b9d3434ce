# Every target sets itself up: the first one that is run makes .venv and installs into it.
PYTHON ?= python3
BIN := .venv/bin
# Made last by an installation; older than what it was made from means install again. To run the demo, and whatever else
# the README shows, the package with its studies and dashboard is enough; tests want what development needs.
READY := .venv/.ready
INSTALLED := .venv/.installed
# The build of torch that is wanted, installed first: pip then leaves it alone.
TORCH := $(shell grep '^torch==' constraints.txt)
# Processes for the tests. A file's tests stay in one of them: what they prepare together is prepared once. Files are
# handed out as tests/conftest.py orders them, the longest first, not by the number of their tests.
WORKERS ?= 2
# Where Python is told to keep no bytecode, as in many containers, each program that a test starts compiles the whole
# package again: half a second of some hundred programs.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test lint bench test-slow docs wheel services clean
.DEFAULT_GOAL := help

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## train on a built-in market, evaluate on data the agent never saw, write a report
	@$(BIN)/python examples/demo.py

test: lint ## lint, check types, then run every test that is not slow
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow"

lint: $(INSTALLED) ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(INSTALLED) ## measure steps and training steps a second on this machine
	@$(BIN)/velodrome bench step
	@$(BIN)/velodrome bench train

test-slow: $(INSTALLED) ## run the tests that take minutes
	@$(BIN)/python -m pytest -q -m slow

docs: $(INSTALLED) ## build the documentation as a site in build/site; a broken link is an error
	@$(BIN)/python -m zensical build --strict

wheel: $(INSTALLED) ## build what pip installs, in dist/
	@$(BIN)/python -m build --wheel --no-isolation

clean: ## remove .venv, caches and build outputs
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

services: ## install chromium and PostgreSQL (as root, Debian), which some tests need
	@{ command -v chromium && ls /usr/lib/postgresql/*/bin/initdb; } >/dev/null 2>&1 || \
	{ apt-get -qq update && apt-get -qq install -y chromium postgresql; } >/dev/null

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; found = "%d.%d" % sys.version_info[:2]; sys.exit(0 if found in ("3.11", "3.12", "3.13") else \
	"velodrome needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is " + found + "; name another: make PYTHON=python3.11")'
	@echo "setting up .venv (once; a minute or more, most of it downloading torch)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[tune,dashboard]"
	@touch $@

$(INSTALLED): $(READY)
	@echo "adding what development needs to .venv (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@# Without what it declares: gym and Box2D are for its own demonstrations, and build only with further tools.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps elegantrl==0.3.6
	@# TorchTrade wants an older TorchRL than ours and every exchange's client; its offline environments need these alone.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile torchtrade==0.1.0 \
	alpaca-py==0.44.0 ccxt==4.5.90 pytz==2026.6 websockets==17.4
	@# FinRL wants clients of a dozen services; the environments that it is measured by need none of them.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile finrl==0.3.7
	@touch $@
