"""The table "How does it compare?" of the README, from benchmarks/results/accuracy.md.

``python docs/comparison_table.py`` writes it into the README; a test holds the two equal.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
START, END = "<!-- comparison: made by docs/comparison_table.py -->", "<!-- end of comparison -->"
SETS = {
    "school r=0.2": "139 schools, a fifth of the pupils",
    "exam r=0.5": "65 London schools",
    "hsb82 r=0.5": "160 US schools",
    "computer r=0.5": "190 people rate computers",
    "parkinson r=0.3": "42 patients, random rows",
    "parkinson r=0.3 time": "42 patients, random rows, time as a feature",
    "parkinson r=0.6 time visit": "42 patients, whole visits held out",
    "sales weeks r=0.5": "811 products, whole weeks held out",
    "tmy3 h=8 every=24 weeks r=0.2": "109 weather stations, whole weeks held out",
    "tmy3 h=8 every=24": "109 weather stations, learned in winter, used all year",
}
_MIXED = "mixedlm (random slopes)"
METHODS = {
    "GGMTL (default)": "ggmtl",
    "Pooled": "one model for all",
    "Independent": "separate models",
    _MIXED: "mixed model",
    "gpboost (random slopes)": "gpboost",
    "boosted trees": "boosted trees",
}


def comparison_table() -> str:
    """Errors of the chosen sets and methods in Markdown, the lowest of each row in bold."""
    text = (ROOT / "benchmarks" / "results" / "accuracy.md").read_text(encoding="utf-8")
    lines = text.split("## All methods\n")[1].split("\n## ")[0].strip().splitlines()
    head, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "---" not in line]
    errors = {row[0]: dict(zip(head[1:], row[1:])) for row in rows}
    table = [f"| tasks | {' | '.join(METHODS.values())} |", f"| --- |{' --- |' * len(METHODS)}"]
    for name, words in SETS.items():
        found = [re.match(r"[\d.]+", errors[name][method]) for method in METHODS]
        values = [match.group() if match else "–" for match in found]
        least = min(float(value) for value in values if value != "–")
        cells = [f"**{value}**" if value != "–" and float(value) == least else value for value in values]
        table.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join([*table, "", mixed_sentence([errors[name] for name in SETS])])


def mixed_sentence(rows: list[dict[str, str]]) -> str:
    """In how many rows a mixed model is as good or better."""
    ours, theirs = ([float(row[name].split()[0]) for row in rows] for name in ("GGMTL (default)", _MIXED))
    close = sum(abs(a / b - 1.0) <= 0.001 for a, b in zip(ours, theirs))
    behind = sum(a / b - 1.0 > 0.001 for a, b in zip(ours, theirs))
    ahead = len(rows) - close - behind
    return (
        f"A mixed model with random slopes is a strong competitor: of these {len(rows)} rows, the two are within "
        f"0.1 % of each other in {close}, the mixed model is ahead in {behind}, and `ggmtl` in {ahead}."
    )


def table_in_readme() -> str:
    """What the README has between the two marks."""
    return (ROOT / "README.md").read_text(encoding="utf-8").split(START)[1].split(END)[0].strip()


if __name__ == "__main__":
    before, rest = (ROOT / "README.md").read_text(encoding="utf-8").split(START)
    after = rest.split(END)[1]
    (ROOT / "README.md").write_text(f"{before}{START}\n{comparison_table()}\n{END}{after}", encoding="utf-8")
