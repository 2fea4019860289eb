"""A fitted model as plain data (``collect``, ``coefficients``), and as words (``words``, ``verdict``, ``phrases``)."""
