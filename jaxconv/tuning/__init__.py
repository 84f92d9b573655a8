"""Plans by measurement, not by estimates: `autotune` writes a file of them, and programs use it after `load_tuning`."""
