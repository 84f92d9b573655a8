"""The planner's costs of CUDA families, and of what they share, fitted to measurements.

candidates.py   which settings of kernels are worth a measurement
sample.py       `python -m benchmarks sample`: measures them
predictions.py  what the planner says of measured rows, with costs on trial
fit.py          the costs that say it best
lax.py          `python -m benchmarks fit-lax`: what the planner expects of lax, fitted to the benchmark and the census
report.py       how well the planner's costs say it
data_files.py   the files that keep the costs, and what they were fitted to
command.py      `python -m benchmarks fit`
"""
