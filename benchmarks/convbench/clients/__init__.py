"""Whole networks, and what users reported of lax, on jaxconv and on lax.

networks.py   networks of flax's layers
reports.py    small programs, each from an issue of JAX
programs.py   a network's inference and training, or a report, as a function and its arrays
worker.py     a process that compiles and times programs on one side: lax, or jaxconv by `install`
rows.py       the rows: both sides of a program; tables.py: as text
command.py    `python -m benchmarks clients`
"""
