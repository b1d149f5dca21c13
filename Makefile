# Every target prepares what it needs; the first run downloads about 3 GB, later ones start at once.
PYTHON ?= python3
export PYTHON
# The environment is ours: compiled modules kept there save 10 seconds at each start of a rank.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help quickstart test unit check bench reference lock clean environment

help: ## this list
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z]*\):.*## /  \1\t/p' Makefile | expand -t 14

quickstart: environment ## fine-tune a small model on this machine and see what it learned
	@.venv/bin/python examples/quickstart/make_model.py
	@.venv/bin/finetune run examples/quickstart/job.yaml

test: environment ## all tests
	@.venv/bin/pytest

unit: environment ## the fast tests only
	@.venv/bin/pytest -m "not slow"

check: environment ## formatting, lint, types, layers, lock files
	@sh scripts/check.sh

MODELS = $${FINETUNE_CACHE:-$$HOME/.cache/finetune-operator}/models
# Rows to train on beside the peers: a JSON array in Alpaca's format.
DATA ?= ../shared/data/alpaca_en_demo.json

bench: environment ## start-up, storage, data preparation, training: one JSON line each
	@.venv/bin/python benchmarks/startup.py
	@.venv/bin/python benchmarks/storage.py
	@.venv/bin/python benchmarks/loss_memory.py
	@.venv/bin/python examples/quickstart/make_model.py >/dev/null
	@.venv/bin/python benchmarks/prepare.py --rows 100000 --model "$(MODELS)/SmolLM2-135M-Instruct"
	@test -f "$(DATA)" || { echo "bench: no $(DATA): name a JSON array of Alpaca rows as DATA=FILE" >&2; exit 1; }
	@.venv/bin/python benchmarks/throughput.py --rows 16 --data "$(DATA)" --model "$(MODELS)/SmolLM2-135M-Instruct"

reference: environment ## write docs/reference from the code
	@.venv/bin/python -m scripts.reference

lock: ## resolve the lock files again; LOCK=--upgrade takes newer versions
	@test -x .venv/bin/uv || sh scripts/setup.sh
	@sh scripts/lock.sh $(LOCK)

clean: ## remove the environment and all caches of the checkout
	rm -rf .venv dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find operator trainer tests scripts examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

environment:
	@sh scripts/setup.sh
