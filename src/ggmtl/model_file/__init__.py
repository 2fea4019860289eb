"""Models in one small file: plain data and arrays, no code."""

from ggmtl.model_file.container import MAGIC, VERSION, read_file, write_file
from ggmtl.model_file.state import ModelState, read_model, write_model
from ggmtl.model_file.values import encode

__all__ = ["MAGIC", "VERSION", "ModelState", "encode", "read_file", "read_model", "write_file", "write_model"]
