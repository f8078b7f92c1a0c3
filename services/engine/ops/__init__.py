"""Operators, one folder each: contract in `__init__`, an fp32 reference, later kernels. They import nothing of ours."""
