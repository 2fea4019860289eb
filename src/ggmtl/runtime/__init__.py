"""Services of the machine that every room may use: whole files, memory asked for first, threads, the journal of a fit.

In: bytes, sizes, functions of no argument. Out: the same, safely. No mathematics lives here.
"""
