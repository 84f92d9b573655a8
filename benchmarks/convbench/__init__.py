"""The benchmark: each pass of a list of layers on jaxconv's kernels and on lax, in one process, on the same arrays.

    python -m benchmarks [--suites sd] [--dtypes bfloat16] [--implementations simt] [--out FILE.json]
    python -m benchmarks --readme

A jaxconv that is installed, but not as an editable package, would be hidden by the sources in the root of the
repository, which `-m` puts first in `sys.path`: then it is `python -P benchmarks`, with PYTHONPATH if need be.

    cases.py      the layers, read from ../cases.json
    floor.py      the least time a GPU could take
    programs.py   a pass of a layer as a compiled program, and the check that our kernels answer it
    timing.py     the time of a compiled program
    measure.py    the rows: a program of ours and one of lax's, timed
    machine.py    what the rows were measured on
    results.py    the file of rows, and geometric means over it
    tables.py     rows as text
    charts.py     rows as pictures
    readme.py     the part of ../../README.md that is made from ../results
    command.py    the command line
"""
