"""The report: one self-contained HTML page about a fitted model, readable without a network.

In: a fitted model (``inspection.summary.collect`` makes it plain data). Out: a file. ``page`` fills
``page.html.jinja``, ``payload`` makes the data of the scripts, and ``placing`` decides where each task is drawn. The
files in ``scripts`` draw the graph and the tables in the browser.
"""

from ggmtl.report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
