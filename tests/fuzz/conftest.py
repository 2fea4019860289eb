"""Count the generated cases of every property, also over several processes, and print their number."""

import pytest
from harness import PROFILE, counts


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    before = dict(counts)
    yield
    for name, number in counts.items():
        pyfuncitem.user_properties.append((name, number - before[name]))


def pytest_terminal_summary(terminalreporter):
    totals = dict.fromkeys(counts, 0)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, number in report.user_properties:
                    if name in totals:
                        totals[name] += number
    if totals["cases"]:
        cases, refused = totals["cases"], totals["refused"]
        terminalreporter.write_line(f"fuzz ({PROFILE}): {cases:,} generated cases; refused with a message: {refused:,}")
