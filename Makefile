# Two commands from a fresh clone: `make demo` and `make test`. Both install into .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

EXAMPLE := --question "Who is the founder of Ferrox Steel?" --gold 2 --answer "Ida Ritter" --length 8 \
  --doc examples/hydrax.txt --doc examples/ferrox.txt --doc examples/xanto.txt

.PHONY: demo test lint
demo: $(INSTALLED)
	mkdir -p runs
	$(BIN)/floatscope check twin-llada
	$(BIN)/floatscope trace twin-llada $(EXAMPLE) --steps 8 --out runs/twin-llada.safetensors
	$(BIN)/floatscope trace twin-arm $(EXAMPLE) --out runs/twin-arm.safetensors

test: lint
	$(BIN)/pytest -n 2

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "floatscope needs Python 3.11 to 3.13: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
