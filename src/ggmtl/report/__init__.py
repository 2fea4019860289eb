"""The report: one self-contained page about a fitted model, readable without a network."""

from ggmtl.report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
