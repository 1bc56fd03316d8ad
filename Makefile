# Two commands from a fresh clone: `make demo` and `make test`. Both install into .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test quick fuzz faults bench lint
demo: $(INSTALLED)
	$(BIN)/floatscope study demo --out runs/demo
	@echo runs/demo/report.html

test: lint
	$(BIN)/pytest -n 2

quick: $(INSTALLED)
	$(BIN)/pytest -n 2 -m "not slow"

fuzz: $(INSTALLED)
	$(BIN)/python -m tests.fuzz

faults: $(INSTALLED)
	$(BIN)/python -m tests.faults

# Other tools go into an environment of their own: they want versions of their own.
bench: $(INSTALLED)
	test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	.venv-bench/bin/python benchmarks/peers.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/deno lint

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "floatscope needs Python 3.11 to 3.13: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
