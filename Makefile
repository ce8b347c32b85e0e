# Sets itself up on first use: every target that needs the environment makes it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
TEST := OMP_NUM_THREADS=1 $(BIN)/pytest
DEMO_OUT ?= runs/demo

.PHONY: setup native demo test test-slow lint format docs bench clean

setup: $(VENV)/.dev  ## the environment with everything that development needs

$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) nanobind scikit-build-core setuptools $(if $(shell command -v cmake),,cmake ninja)
	$(PIP) --no-build-isolation --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) --no-build-isolation --editable '.[dev,docs]'
	touch $@

native:  ## compile what has changed under native/ and put it where `import cortext` finds it
	cmake --build build/native
	cmake --install build/native --prefix $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))') >/dev/null

demo: $(VENV)/.base  ## simulate, train, evaluate, report
	$(BIN)/cortext demo --out $(DEMO_OUT)

test: $(VENV)/.dev  ## the fast tests, with coverage
	$(TEST) -m "not slow" -n 2 --cov --cov-report=term:skip-covered --cov-fail-under=85

test-slow: $(VENV)/.dev  ## the rest
	$(TEST) -m slow -n 2 --dist loadfile

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev  ## the documentation as a web site under build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir build/site

bench: $(VENV)/.dev  ## the benchmarks of speed; tables on the screen, JSON under build/bench
	mkdir -p build/bench
	for name in data_loading simulator; do $(BIN)/python benchmarks/$$name.py --json build/bench/$$name.json || exit 1; done

clean:
	rm -rf $(VENV) build dist runs/demo .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
