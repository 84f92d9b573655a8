"""How a convolution splits over the devices of a mesh."""
