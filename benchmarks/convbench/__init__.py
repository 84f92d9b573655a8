"""The benchmark: each pass of a list of layers on jaxconv's kernels and on lax, in one process, on the same arrays.

    python -m benchmarks [--suites sd] [--dtypes bfloat16] [--implementations simt] [--save | --out FILE.json]
    python -m benchmarks --merge FILE.json
    python -m benchmarks --docs
    python -m benchmarks sample | fit | fit-lax | census | epilogue | narrow | folded | calls | clients --help

A jaxconv that is installed, but not as an editable package, would be hidden by the sources in the root of the
repository, which `-m` puts first in `sys.path`: then it is `python -P benchmarks`, with PYTHONPATH if need be.

    cases.py      the layers, read from ../cases.json
    floor.py      the least time a GPU could take
    programs.py   a pass of a layer as a program: its problem, compiling it, and the check that our kernels answer it
    measure.py    the rows: a program of ours and one of lax's, timed
    machine.py    what the rows were measured on, and with what
    rows.py       a file of rows of one machine
    results.py    the benchmark's rows, into which new ones are merged; geometric means over rows
    tables.py     rows as text
    charts.py     rows as pictures
    docs.py       what of ../../README.md and ../../docs is made from ../results, ../census and others
    selection.py  the options that say what is measured
    command.py    the command line
    calls.py      what a call costs besides its kernel
    folded.py     an inference with folded normalisation, of the layers in resnet50.py
    tuning/       the planner's costs, fitted to measurements
    census/       layers drawn from kinds of networks
    clients/      whole networks, and what users reported of lax
"""
