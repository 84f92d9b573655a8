"""Planning: candidates of the kernel families, their costs, the cheapest."""
