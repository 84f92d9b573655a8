PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/installed
# An editable install: it sees changes of Python files at once, those of what is compiled are made here.
SOURCES := $(shell find src_common src_cpu src_cuda -type f)
BUILT_FROM := pyproject.toml CMakeLists.txt $(wildcard build_backend/*.py) $(SOURCES)

.PHONY: demo test test-full lint format bench docs clean

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

$(INSTALLED): $(BUILT_FROM)
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --editable '.[bench,clients,demo,dev,docs,test]'
	touch $@

clean:
	rm -rf $(VENV) build
