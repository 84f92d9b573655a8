"""jaxconv's CUDA kernels, built with CUDA 13. jaxconv loads them; there is nothing to call here."""
