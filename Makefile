# Two commands from a fresh clone: `make demo` and `make test`. Both install into .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
unexport PYTHONDONTWRITEBYTECODE  # pytest compiles every test anew without its cache

.PHONY: demo test quick fuzz faults bench lint docs dist
demo: $(INSTALLED)
	$(BIN)/floatscope study demo --out runs/demo
	@echo runs/demo/report.html

test: lint
	$(BIN)/pytest -n 2

quick: $(INSTALLED)
	$(BIN)/pytest -n 2 -m "not slow"

docs: $(INSTALLED)
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky -b html docs dist/docs
	@echo dist/docs/index.html

# Wheel and sdist, the wheel installed into an environment of its own, and the demo run from there.
dist: $(INSTALLED)
	rm -rf dist/*.whl dist/*.tar.gz dist/clean
	$(BIN)/hatchling build -d dist
	ls -l dist/*.whl dist/*.tar.gz | awk '{printf "%s: %.1f MB\n", $$9, $$5 / 1e6}'
	$(PYTHON) -m venv dist/clean/venv
	dist/clean/venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd dist/clean && venv/bin/floatscope study demo --limit 10

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
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15) and "floatscope needs Python 3.11 to 3.14: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . --group dev
	touch $@
