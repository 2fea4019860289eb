"""Services that every room may use.

In: bytes, sizes, functions, plain arrays. Out: the same.

============  ===========================================================================
``sizes``     problem sizes at which the algorithms change, each with the measurement behind it
``machine``   threads and memory
``files``     files that are written whole or not at all; plain data and arrays in one file
``journal``   the checkpoint and the log of a fit
``kernels``   the few hot loops on plain arrays, in NumPy and compiled
============  ===========================================================================
"""
