"""Count the generated cases of every property, also over several processes; a long run writes them down."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
from harness import PROFILE, counts

PAGE = Path(__file__).parent.parent / "fuzz.md"
_ROW = re.compile(r"\| `(test_\w+)` \| ([\d,]+) \| ([\d,]+) \|")


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    before = dict(counts)
    yield
    for name, number in counts.items():
        pyfuncitem.user_properties.append((name, number - before[name]))


def pytest_terminal_summary(terminalreporter):
    totals, passed = dict.fromkeys(counts, 0), defaultdict(lambda: dict.fromkeys(counts, 0))
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if getattr(report, "when", None) != "call":
                continue
            for name, number in report.user_properties:
                if name in totals:
                    totals[name] += number
                    if outcome == "passed":
                        passed[report.nodeid.split("::")[-1].split("[")[0]][name] += number
    if totals["cases"]:
        cases, refused = totals["cases"], totals["refused"]
        terminalreporter.write_line(f"fuzz ({PROFILE}): {cases:,} generated cases; refused with a message: {refused:,}")
    if PROFILE == "long":
        write_page({name: (found["cases"], found["refused"]) for name, found in passed.items() if found["cases"]})


def write_page(found):
    """The cases of the last long run of every property that passed; those that were not run stay as they are."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    rows = {name: (int(a.replace(",", "")), int(b.replace(",", ""))) for name, a, b in _ROW.findall(text)} | found
    total, refused = (sum(row[k] for row in rows.values()) for k in range(2))
    lines = [
        "# Generated cases",
        "",
        "`make fuzz` writes this page: the fresh cases of every property in the last long run that it passed, and how",
        f"many of them were refused with a message. {total:,} cases in all, {refused:,} refused.",
        "",
        "| property | cases | refused |",
        "| --- | --- | --- |",
    ]
    lines += [f"| `{name}` | {cases:,} | {no:,} |" for name, (cases, no) in sorted(rows.items())]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
