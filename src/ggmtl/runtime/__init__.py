"""Services of the machine that every room may use.

In: bytes, sizes, functions of no argument. Out: the same, safely. No mathematics lives here.

``files`` (written whole or not at all), ``machine`` (threads, memory), ``journal`` (checkpoints, log), ``sizes`` (the
numbers that decide which way is taken).
"""
