"""A machine whose measurements are fitted to, as files of results describe it."""

MACHINE = {"platform": "gpu", "device": "NVIDIA H200", "multiprocessors": 132}
