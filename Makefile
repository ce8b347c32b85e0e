# Sets itself up on first use: every target that needs the environment makes it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# What is compiled is kept: tests start hundreds of interpreters.
TEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest
DEV := $(VENV)/.dev $(VENV)/.built
CPP := $(wildcard native/*.cpp native/*.hpp)
DEMO_OUT ?= runs/demo
FUZZ_SECONDS ?= 20
DEVICE ?= cuda
CMAKE := PATH="$(abspath $(BIN)):$$PATH" cmake
# Python itself is not checked: its allocator must not hide ours, and what it never frees is no leak of ours. The tests for
# leaks, by the memory of the process, run with the usual build: the checker holds back what is freed. What stands on the
# native part through Python alone is left out.
CHECKED := LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
    PYTHONPATH=tools/sanitize:build/sanitize PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1

.PHONY: setup system native checked sanitize fuzz demo live test coverage test-narrow test-slow test-tpu test-tf test-falcon test-triton test-gpu bench-gpu test-accelerators environments wheel test-wheel lint format docs bench clean

setup: $(DEV)  ## the environment with everything that development needs

SYSTEM := redis-server chromium firefox-esr espeak-ng openssl h5repack

system:  ## the Redis server, the browsers, the voice and HDF5's tools that some tests need, on Debian; without them those tests are passed over
	(for program in $(SYSTEM); do command -v $$program >/dev/null || exit 1; done) || { \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends $(SYSTEM:h5repack=hdf5-tools) >/dev/null; }

$(VENV)/.base: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cortext needs Python 3.11 or newer, and $(PYTHON) is %d.%d; make PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(PIP) nanobind scikit-build-core setuptools $(foreach tool,cmake ninja,$(if $(shell command -v $(tool)),,$(tool)))
	$(PIP) --no-build-isolation --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) --no-build-isolation --editable '.[dev,docs]'
	touch $@

# What has been compiled is as new as its sources, also after a pull.
$(VENV)/.built: $(VENV)/.base $(wildcard native/* native/kenlm/*)
	$(MAKE) native
	touch $@

native: $(VENV)/.base  ## compile what has changed under native/ and put it where `import cortext` finds it
	$(CMAKE) --build build/native
	$(CMAKE) --install build/native --prefix $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))') >/dev/null

checked: $(DEV)  ## the native part, looking for wrong addresses and undefined behaviour as it runs
	$(CMAKE) -S native -B build/sanitize -G Ninja -DCORTEXT_SANITIZE=ON -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	    -DKENLM_SOURCE=$(or $(KENLM_SOURCE),$(firstword $(wildcard build/native/kenlm-*/kenlm-*.tar.gz))) >/dev/null
	$(CMAKE) --build build/sanitize

sanitize: checked  ## the tests of the native part with the checked build
	$(CHECKED) $(BIN)/pytest -m "not slow" -k "not leak and not second_interpreter" -n 2 -q tests/core/native tests/core/decoding \
	    tests/attacks/test_native.py tests/attacks/test_native_arrays.py \
	    --ignore=tests/core/decoding/ngram

fuzz: checked  ## damaged files, with the usual build and with the checked one; damaged messages to the live servers
	OMP_NUM_THREADS=1 $(BIN)/python tools/fuzz_native.py --seconds $(FUZZ_SECONDS) --out build/fuzz
	$(CHECKED) $(BIN)/python tools/fuzz_native.py --seconds $(FUZZ_SECONDS) --seed 1000 --out build/fuzz-checked
	for server in lm_server brand; do \
	    OMP_NUM_THREADS=1 $(BIN)/python tools/fuzz_$$server.py --seconds $(FUZZ_SECONDS) --out build/fuzz-$$server || exit 1; done

demo: $(VENV)/.built  ## simulate, train, evaluate, report
	$(BIN)/cortext demo --out $(DEMO_OUT)

$(VENV)/.live: $(VENV)/.base
	$(PIP) --no-build-isolation --editable '.[live]'
	touch $@

live: $(VENV)/.built $(VENV)/.live  ## watch the demo's decoder at work, on a web page
	test -d $(DEMO_OUT)/run || $(MAKE) demo
	$(BIN)/cortext serve $(DEMO_OUT)/run --lm $(DEMO_OUT)/lm --data $(DEMO_OUT)/packed

# Each process takes a third in one piece: what a module's tests share is made once. Three keep two
# cores busy while some tests wait.
FAST := -m "not slow" -n 3 --dist worksteal
PACKAGE ?=

test: $(DEV)  ## the fast tests; PACKAGE=live: those of cortext_live alone, PACKAGE=core: those of cortext
	$(TEST) $(FAST) $(addprefix tests/,$(PACKAGE))

coverage: $(DEV)  ## the fast tests, and the share of lines that they reach; half as long again
	$(TEST) $(FAST) --cov --cov-report=term:skip-covered --cov-fail-under=85

NARROW := avx2

test-narrow: $(DEV)  ## the tests of what chooses its instructions, as on a processor without AVX-512; NARROW=sse: without AVX, NARROW=avx512: without VNNI
	mkdir -p build
	$(CC) -O1 -shared -fPIC tests/support/narrow_processor.c -o build/narrow_processor.so -ldl
	LD_PRELOAD=$(abspath build/narrow_processor.so) NARROW_PROCESSOR=$(NARROW) $(TEST) -q -m "not slow" tests/core/models tests/core/native \
	    tests/core/decoding tests/live/steps tests/lm tests/bench tests/attacks/test_native.py tests/attacks/test_native_arrays.py

AXE := build/axe/package/axe.min.js

$(AXE):  # looks for faults of accessibility in the pages
	mkdir -p build/axe
	cd build/axe && npm pack --silent axe-core@4.14.1 >/dev/null && tar xzf axe-core-4.14.1.tgz package/axe.min.js && rm axe-core-4.14.1.tgz
	touch $@

test-slow: $(DEV) $(AXE)  ## the rest
	$(TEST) -m slow -n 2 --dist loadfile --no-loadscope-reorder --durations 20 \
	    $$(grep -rlw --include='test_*.py' slow tests)

# Environments that stand on the first one: what they install hides what is there, because some of it excludes each other.
$(VENV)-%/.made: constraints-%.txt $(VENV)/.dev
	$(PYTHON) -m venv $(VENV)-$*
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	    > $$($(VENV)-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth
	$(VENV)-$*/bin/pip install --quiet --disable-pip-version-check $(NO_DEPS) --pre --requirement constraints-$*.txt
	touch $@

# The evaluator's package names a program that downloads recordings, with a hundred packages.
$(VENV)-falcon/.made: NO_DEPS := --no-deps
$(VENV)-triton/.made: NO_DEPS := --no-deps

environments: $(VENV)-tpu/.made $(VENV)-cloud/.made $(VENV)-tf/.made $(VENV)-falcon/.made $(VENV)-triton/.made  ## the environments of test-tpu, test-tf, test-falcon and test-triton

test-tpu: $(VENV)/.built $(VENV)-tpu/.made $(VENV)-cloud/.made  ## tests of training on a TPU, on a CPU, and of renting one, in environments of their own
	OMP_NUM_THREADS=1 $(VENV)-tpu/bin/python -m pytest -m tpu tests --ignore=tests/tune/cloud
	OMP_NUM_THREADS=1 $(VENV)-cloud/bin/python -m pytest -m tpu tests/tune/cloud

test-tf: $(VENV)/.built $(VENV)-tf/.made  ## tests of training with TensorFlow, in an environment of their own
	OMP_NUM_THREADS=1 $(VENV)-tf/bin/python -m pytest -m tf tests

test-falcon: $(VENV)/.built $(VENV)-falcon/.made  ## the decoder for the FALCON challenge with its evaluator, in an environment of its own
	OMP_NUM_THREADS=1 $(VENV)-falcon/bin/python -m pytest -q -m falcon tests/published/falcon

test-triton: $(VENV)/.built $(VENV)-triton/.made  ## the fused kernels for GPUs in Triton's interpreter, in an environment of its own
	OMP_NUM_THREADS=1 $(VENV)-triton/bin/python -m pytest -q $$(grep -rlw --include='test_*.py' needs_triton tests)

test-gpu: $(DEV)  ## every part that can use a GPU, compared with the CPU, at most 20 minutes; DEVICE=cpu runs what needs no GPU
	$(BIN)/python benchmarks/gpu_check.py --device $(DEVICE)

bench-gpu: $(DEV)  ## results of the fast path for GPUs, and what each part of it gives, in less than six minutes; DEVICE=cpu runs what needs no GPU
	$(BIN)/python benchmarks/gpu_bench.py --device $(DEVICE)

test-accelerators:  ## tests of JAX, TensorFlow and Triton, on two cores
	$(MAKE) -j 2 --output-sync=target test-tpu test-tf test-triton

wheel: $(DEV)  ## a wheel for this Python on Linux, and the archive of the sources, under dist
	rm -rf build/wheel dist
	$(BIN)/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir build/wheel .
	PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --wheel-dir dist build/wheel/*.whl
	$(BIN)/python -m build --sdist --no-isolation --outdir dist . >/dev/null

test-wheel: wheel  ## what is in it, and the demo with it in an empty environment and folder, without a compiler
	CORTEXT_DIST=$(abspath dist) $(TEST) -m wheel tests/test_wheel.py

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP)

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CPP)

MERMAID := build/mermaid/package/dist/mermaid.min.js

$(MERMAID):  # draws the site's diagrams in the reader's browser
	mkdir -p build/mermaid
	cd build/mermaid && npm pack --silent mermaid@11.12.1 >/dev/null && tar xzf mermaid-11.12.1.tgz package/dist/mermaid.min.js && rm mermaid-11.12.1.tgz
	touch $@

docs: $(DEV) $(MERMAID)  ## the documentation as a web site under build/site, looked at in a browser
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site
	CORTEXT_SITE=$(abspath build/site) $(TEST) -q -m site tests/test_site.py

bench: $(DEV)  ## the benchmarks of speed; tables on the screen, JSON under build/bench
	mkdir -p build/bench
	for name in data_loading simulator; do $(BIN)/python benchmarks/$$name.py --json build/bench/$$name.json || exit 1; done

clean:
	rm -rf $(VENV) $(VENV)-* build dist runs/demo .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
