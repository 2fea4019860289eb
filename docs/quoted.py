"""Numbers of results that stand in sentences of the documentation.

``python docs/quoted.py`` writes them into the pages; a test holds pages and results equal. Every sentence has ``{}``
where a number stands, and says for each in which table of which page of benchmarks/results it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Cell:
    """A number of a page of results: in the table that has the row and the column, and with how many decimals."""

    page: str
    row: str
    column: str
    form: str = ".2f"
    divided_by: float = 1.0
    heading: str = ""

    def text(self) -> str:
        """The number as the page of the documentation has it."""
        lines = (ROOT / "benchmarks" / "results" / self.page).read_text(encoding="utf-8").splitlines()
        head: list[str] = []
        heading = ""
        for before, line in zip(["", *lines], lines):
            heading = line if line.startswith("#") else heading
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if line.startswith("| --- "):
                head = [cell.strip() for cell in before.strip("|").split("|")]
            elif line.startswith("|") and cells[0] == self.row and self.column in head and self.heading in heading:
                number = re.search(r"-?[\d.,]+", cells[head.index(self.column)])
                assert number is not None, f"{self} is no number"
                return format(float(number.group().replace(",", "")) / self.divided_by, self.form)
        raise KeyError(f"No table of {self.page} has the row {self.row!r} and the column {self.column!r}.")


SPEED, MEMORY = "fit ÷ Ridge loop", "memory of the fit ÷ statistics"
ADDED, SEEN = "90 % intervals: new tasks", "seen tasks"
QUOTES: list[tuple[str, str, list[Cell]]] = [
    (
        "guide.md",
        "places and elevation lower the error on all other days from {} °C to\n{} °C, and stations without any day are "
        "predicted to {} °C with 90 % intervals that hold {} % of the days",
        [
            Cell("stations.md", "8", "default"),
            Cell("stations.md", "8", "`task_features`", heading="days of their own"),
            Cell("stations.md", "8", "`task_features`", heading="without any day"),
            Cell("stations.md", "8", "90 % intervals cover", ".0f"),
        ],
    ),
    (
        "scaling.md",
        "Without folds {} s ({} million rows/s) and a peak of {} MB, of which {} MB are the statistics",
        [
            Cell("streaming.md", "from_parquet", "seconds", ".1f"),
            Cell("streaming.md", "from_parquet", "rows/s", ".1f", 1e6),
            Cell("streaming.md", "from_parquet", "peak, MB", ".0f"),
            Cell("streaming.md", "from_parquet", "statistics, MB", ".0f"),
        ],
    ),
    (
        "scaling.md",
        "with five folds {} s and {} MB, of which {} MB are statistics",
        [
            Cell("streaming.md", "from_parquet, 5 folds", "seconds", ".1f"),
            Cell("streaming.md", "from_parquet, 5 folds", "peak, MB", ".0f"),
            Cell("streaming.md", "from_parquet, 5 folds", "statistics, MB", ".0f"),
        ],
    ),
    (
        "scaling.md",
        "The same sums by pandas\n`groupby.apply` took {} s and {} GB",
        [
            Cell("streaming.md", "pandas groupby.apply", "seconds", ".1f"),
            Cell("streaming.md", "pandas groupby.apply", "peak, MB", ".1f", 1000),
        ],
    ),
    (
        "scaling.md",
        "{} loops at 10,000 tasks and {} at 256,000",
        [Cell("scale.md", "10,000", SPEED, ".1f"), Cell("scale.md", "256,000", SPEED, ".1f")],
    ),
    (
        "scaling.md",
        "at an error of {} where the loop has {} and the noise is 1",
        [Cell("scale.md", "32,000", "GGMTL"), Cell("scale.md", "32,000", "RMSE: loop", ".1f")],
    ),
    (
        "scaling.md",
        "A fit takes\n{} to {} times the memory of its statistics",
        [Cell("scale.md", "4,000", MEMORY, ".1f"), Cell("scale.md", "256,000", MEMORY, ".1f")],
    ),
    (
        "scaling.md",
        "A million tasks of 16 features took {} minutes on two cores, and {} GB",
        [Cell("million.md", "1,000,000", "fit, min", ".0f"), Cell("million.md", "1,000,000", "peak GB", ".0f")],
    ),
    (
        "scaling.md",
        "a million tasks of 30 features in {} s",
        [Cell("gpu.md", "float64", "s", ".0f")],
    ),
    (
        "scaling.md",
        "the error of `add_task` is {}\ntimes that of a full refit on Exam and {} times on School, where no edges are "
        "learned, and {} times on made clusters, where they are.\nIts 90 % intervals cover {} %, {} % and {} % of new "
        "rows; those of tasks seen before {} %, {} % and {} %",
        [
            *(Cell("lifecycle.md", name, "ratio", ".3f") for name in ("exam", "school")),
            Cell("lifecycle.md", "clusters (made)", "ratio"),
            *(Cell("lifecycle.md", name, ADDED, ".0f") for name in ("exam", "school", "clusters (made)")),
            *(Cell("lifecycle.md", name, SEEN, ".0f") for name in ("exam", "school", "clusters (made)")),
        ],
    ),
]


def pattern(sentence: str) -> re.Pattern[str]:
    """The sentence with any numbers, and with any line breaks."""
    parts = [r"\s+".join(map(re.escape, part.split(" "))) for part in re.sub(r"\s", " ", sentence).split("{}")]
    return re.compile(r"([\d.]+)".join(parts))


def quoted_and_measured(page: str, sentence: str, cells: list[Cell]) -> tuple[list[str], list[str]]:
    """The numbers in the page, and those in the results."""
    found = pattern(sentence).search((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert found is not None, f"{page} does not say: {sentence}"
    return list(found.groups()), [cell.text() for cell in cells]


def write(page: str, sentence: str, cells: list[Cell]) -> None:
    """Put the numbers of the results into the page."""
    path = ROOT / "docs" / page
    text = path.read_text(encoding="utf-8")
    found = pattern(sentence).search(text)
    assert found is not None, f"{page} does not say: {sentence}"
    for k in range(len(cells), 0, -1):
        text = f"{text[: found.start(k)]}{cells[k - 1].text()}{text[found.end(k) :]}"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for quote in QUOTES:
        write(*quote)
