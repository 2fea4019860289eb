"""A fitted model as plain data (``collect``), and as words (``words``, ``verdict``, ``phrases``)."""
