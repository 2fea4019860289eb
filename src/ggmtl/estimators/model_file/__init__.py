"""Models in one small file: plain data and arrays, no code."""
