"""Convolutions that end with an epilogue: a primitive, what answers it, and its derivatives."""
