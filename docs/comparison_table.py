"""The table "How does it compare?" of the README, from the pages of benchmarks/results.

``python docs/comparison_table.py`` writes it into the README; a test holds the two equal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
START, END = "<!-- comparison: made by docs/comparison_table.py -->", "<!-- end of comparison -->"
COLUMNS = ("ggmtl", "one model for all", "separate models", "mixed model", "gpboost", "boosted trees")


@dataclass(frozen=True)
class Source:
    """A table of a page of results: its heading, what its columns are called, and which rows are shown how."""

    page: str
    heading: str
    methods: tuple[str | None, ...]
    rows: dict[str, str]

    def errors(self) -> dict[str, list[str]]:
        """Numbers of the shown rows in the order of `COLUMNS`; a dash where there is none."""
        text = (RESULTS / self.page).read_text(encoding="utf-8")
        lines = text.split(f"## {self.heading}\n")[1].split("\n## ")[0].strip().splitlines()
        lines = [line for line in lines if line.startswith("|") and "---" not in line]
        head, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        found = {row[0].strip("*"): dict(zip(head[1:], row[1:])) for row in rows}
        return {
            words: [self._number(found[name], method) for method in self.methods] for name, words in self.rows.items()
        }

    @staticmethod
    def _number(row: dict[str, str], method: str | None) -> str:
        match = re.match(r"[\d.]+", row[method]) if method else None
        return match.group() if match else "–"


ACCURACY = Source(
    "accuracy.md",
    "All methods",
    (
        "GGMTL (default)",
        "Pooled",
        "Independent",
        "mixedlm (random slopes)",
        "gpboost (random slopes)",
        "boosted trees",
    ),
    {
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
    },
)
PANELS = Source(
    "panels.md",
    "Task-mean RMSE",
    ("GGMTL", "pooled", "ridge per task", "mixedlm", "gpboost", "boosted trees"),
    {"geometric mean": "ten tables of states, firms, countries …: ratio to the best simple method of each"},
)

OUTCOMES = Source(
    "outcomes.md",
    "Loss",
    ("GGMTL", "pooled", "per task", None, "gpboost, slopes", "boosted trees"),
    {
        "landmine/20": "29 fields with land mines, 20 rows each: log-loss",
        "landmine/160": "the same, 160 rows each",
        "Contraception": "60 districts, use of contraception: log-loss",
        "Mmmec": "78 regions, deaths by skin cancer: mean Poisson deviance",
    },
)


def comparison_table() -> str:
    """Errors of the chosen sets and methods in Markdown, the lowest of each row in bold, and who is ahead."""
    table = [f"| tasks | {' | '.join(COLUMNS)} |", f"| --- |{' --- |' * len(COLUMNS)}"]
    measured = ACCURACY.errors()
    for words, values in (measured | PANELS.errors() | OUTCOMES.errors()).items():
        least = min(float(value) for value in values if value != "–")
        cells = [f"**{value}**" if value != "–" and float(value) == least else value for value in values]
        table.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join([*table, "", mixed_sentence(list(measured.values())), curves_sentence()])


def mixed_sentence(rows: list[list[str]]) -> str:
    """In how many rows a mixed model is as good or better."""
    ours, theirs = ([float(row[COLUMNS.index(name)]) for row in rows] for name in ("ggmtl", "mixed model"))
    close = sum(abs(a / b - 1.0) <= 0.001 for a, b in zip(ours, theirs))
    behind = sum(a / b - 1.0 > 0.001 for a, b in zip(ours, theirs))
    ahead = len(rows) - close - behind
    return (
        f"A mixed model with random slopes is a strong competitor: of the first {len(rows)} rows, the two are within "
        f"0.1 % of each other in {close}, the mixed model is ahead in {behind}, and `ggmtl` in {ahead}."
    )


def curves_sentence() -> str:
    """What curves are worth on the ordinary tables."""
    found = Source(PANELS.page, PANELS.heading, ('GGMTL, `effects="auto"`',), PANELS.rows)
    ((ratio,),) = found.errors().values()
    return f'On the ten tables, `effects="auto"` (curves where held-out rows ask for them) lowers the ratio to {ratio}.'


def table_in_readme() -> str:
    """What the README has between the two marks."""
    return (ROOT / "README.md").read_text(encoding="utf-8").split(START)[1].split(END)[0].strip()


if __name__ == "__main__":
    before, rest = (ROOT / "README.md").read_text(encoding="utf-8").split(START)
    after = rest.split(END)[1]
    (ROOT / "README.md").write_text(f"{before}{START}\n{comparison_table()}\n{END}{after}", encoding="utf-8")
