PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/installed
# An editable install: it sees changes of Python files at once, those of what is compiled are made here.
BUILT_FROM := pyproject.toml CMakeLists.txt $(wildcard build_backend/*.py) \
              $(shell find src_common src_cpu src_cuda -type f)

.PHONY: demo test bench clean

demo: $(INSTALLED)
	$(VENV)/bin/python examples/digits.py

test: $(INSTALLED)
	$(VENV)/bin/python -m pytest -n 2 -m "not gpu"

# Merges what it measures into the machine's file in benchmarks/results, and rewrites the pages that show it.
# make bench BENCH="--suites sd --dtypes bfloat16"
bench: $(INSTALLED)
	$(VENV)/bin/python -m benchmarks --save $(BENCH)

$(INSTALLED): $(BUILT_FROM)
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --editable '.[bench,demo,test]'
	touch $@

clean:
	rm -rf $(VENV) build
