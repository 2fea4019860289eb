"""The directive ``command-help``: what a command says of itself, taken from the command when the page is built."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from typer.testing import CliRunner

from ggmtl.cli.app import app as commands


class CommandHelp(Directive):
    """Show ``ggmtl NAME --help``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """One literal block."""
        result = CliRunner(env={"COLUMNS": "88"}).invoke(commands, [self.arguments[0], "--help"])
        if result.exit_code:
            raise self.error(f"ggmtl {self.arguments[0]} --help failed: {result.output}")
        block = nodes.literal_block(result.output, result.output.rstrip())
        block["language"] = "text"
        return [block]


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
