"""Numbers of results that stand in sentences of the documentation.

``python docs/quoted.py`` writes them into the pages; a test holds pages and results equal. Every sentence has ``{}``
where a number stands, and says for each where it comes from: a cell or a sentence of a page of benchmarks/results, or a
constant of the code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ggmtl.evidence.level_value import PROBES
from ggmtl.evidence.sampling import _STEPS
from ggmtl.evidence.selection import _MARGIN
from ggmtl.runtime.sizes import SIZES

ROOT = Path(__file__).parent.parent


class Source(Protocol):
    """Where a number comes from."""

    def text(self) -> str:
        """The number as the page of the documentation has it."""
        ...


@dataclass(frozen=True)
class Constant:
    """A number of the code."""

    value: float
    form: str = ",.0f"

    def text(self) -> str:
        """The number as the page of the documentation has it."""
        return format(self.value, self.form)


@dataclass(frozen=True)
class Phrase:
    """A number of a sentence of a page of results: the group of a regular expression."""

    page: str
    expression: str
    form: str = ",.0f"
    divided_by: float = 1.0

    def text(self) -> str:
        """The number as the page of the documentation has it."""
        found = re.search(self.expression, (ROOT / "benchmarks" / "results" / self.page).read_text(encoding="utf-8"))
        assert found is not None, f"{self.page} does not say: {self.expression}"
        return format(float(found[1].replace(",", "")) / self.divided_by, self.form).replace("e-0", "e-")


@dataclass(frozen=True)
class Cell:
    """A number of a page of results: in the table that has the row and the column, and with how many decimals.

    `row` is the first cell of the row, or its first two as in ``"line | GGMTL (default)"``.
    """

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
            elif line.startswith("|") and self.row in (cells[0], " | ".join(cells[:2])) and self.column in head:
                if self.heading not in ("", heading.lstrip("# ")):
                    continue
                number = re.search(r"-?[\d.,]+", cells[head.index(self.column)])
                assert number is not None, f"{self} is no number"
                return format(float(number.group().replace(",", "")) / self.divided_by, self.form)
        raise KeyError(f"No table of {self.page} has the row {self.row!r} and the column {self.column!r}.")


PAPER, DEFAULT, CCMTL, MIXED = "GGMTL (paper, ℓ2²)", "GGMTL (default)", "CCMTL", "mixedlm (random slopes)"


def paper(page: str, heading: str, columns: str, *rows: str) -> list[Cell]:
    """Cells of a table of the paper, row by row."""
    columns_of_row = [column.strip() for column in columns.split(",")]
    return [Cell(f"paper/{page}.md", row, column, ".3f", heading=heading) for row in rows for column in columns_of_row]


PUBLISHED, TEXT = "line published, tree published, star published", "line, tree, star"
FOLDS = "Random rows, 18 features"
TIMED, VISITS = "Random rows, with test_time (19 features)", "Whole visits held out, with test_time"
SCHOOL = "Chosen by folds of the training rows"
SPEED, MEMORY = "fit ÷ Ridge loop", "memory of the fit ÷ statistics"
ADDED, SEEN = "90 % intervals: new tasks", "seen tasks"
LATE, SHARE = "share of time, `relearn=False`", "share of time"
QUOTES: list[tuple[str, str, Sequence[Source]]] = [
    ("../README.md", "[up to {} tasks](benchmarks/results/scale.md)", [Cell("scale.md", "256,000", "tasks", ",.0f")]),
    (
        "how_it_works.md",
        "Beyond {} tasks, or {} coefficients in all, the same",
        [Constant(SIZES.exact_tasks), Constant(SIZES.exact_evidence)],
    ),
    ("how_it_works.md", "for clusters, and up to {}\ncoefficients in all", [Constant(SIZES.exact_evidence)]),
    ("how_it_works.md", "does not exceed the hub by {} nats", [Constant(_MARGIN)]),
    ("how_it_works.md", "a sample of {} tasks is enough", [Constant(SIZES.hub_sample)]),
    ("how_it_works.md", "({} by default), each by at most {} steps of Lanczos", [Constant(PROBES), Constant(_STEPS)]),
    (
        "how_it_works.md",
        "the reported error is {} times that of the final model",
        [Phrase("honesty.md", r"over the final model's ([\d.]+)", ".2f")],
    ),
    (
        "scaling.md",
        "{} million rows of {} tasks in random order, {} features, {} GB\nof Parquet files",
        [
            Phrase("streaming.md", r"([\d,]+) rows of", ".1f", 1e6),
            Phrase("streaming.md", r"rows of ([\d,]+) tasks"),
            Phrase("streaming.md", r"d = (\d+)"),
            Phrase("streaming.md", r"([\d.]+) GB of Parquet"),
        ],
    ),
    (
        "scaling.md",
        "and {} MB\nPython with its libraries",
        [Phrase("streaming.md", r"Interpreter and imports alone: (\d+) MB")],
    ),
    (
        "scaling.md",
        "(n^{} from {} to {} tasks in",
        [
            Phrase("scale.md", r"grows as n\^(\d+\.\d+)", ".2f"),
            Phrase("scale.md", r"From ([\d,]+) tasks on"),
            Cell("scale.md", "256,000", "tasks", ",.0f"),
        ],
    ),
    (
        "scaling.md",
        "with {} features and {} rows per task",
        [Cell("scale.md", "10,000", "d", ".0f"), Cell("scale.md", "10,000", "rows each", ".0f")],
    ),
    (
        "scaling.md",
        "stay, the models follow all rows | {}–{} %",
        [Cell("lifecycle.md", "exam", LATE, ".1f"), Cell("lifecycle.md", "school", LATE, ".0f")],
    ),
    (
        "scaling.md",
        "`add_task(name, X, y)` | {}–{} %",
        [Cell("lifecycle.md", "clusters (made)", SHARE, ".1f"), Cell("lifecycle.md", "exam", SHARE, ".1f")],
    ),
    (
        "scaling.md",
        "criterion in {} to {} s up to moderate coupling and {} s at the strongest tried",
        [
            Cell("gpu.md", "0.1", "s at 1e-8", ".1f"),
            Cell("gpu.md", "10", "s at 1e-8", ".1f"),
            Cell("gpu.md", "10000", "s at 1e-8", ".1f"),
        ],
    ),
    (
        "scaling.md",
        "agree with the CPU to {}",
        [Phrase("gpu.md", r"edges: relative difference ([\d.e-]+)", ".0e")],
    ),
    (
        "paper.md",
        "r = .6: {} clusters and one single patient; neighbours: one cluster of all {}",
        [
            Cell("paper/figures.md", f"parkinson r=0.6 | {PAPER}", "clusters", ".0f"),
            Cell("paper/figures.md", "parkinson r=0.6 | 10 nearest neighbours", "largest", ".0f"),
        ],
    ),
    (
        "guide.md",
        "places and elevation lower the error on all other days from {} °C to\n{} °C, and stations without any day are "
        "predicted to {} °C with 90 % intervals that hold {} % of the days",
        [
            Cell("stations.md", "8", "default"),
            Cell("stations.md", "8", "`task_features`", heading="Stations with days of their own"),
            Cell("stations.md", "8", "`task_features`", heading="100 stations without any day"),
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
        "A million tasks of {} features took {} minutes on two cores, and {} GB",
        [Cell("million.md", "1,000,000", column, ".0f") for column in ("d", "fit, min", "peak GB")],
    ),
    (
        "scaling.md",
        "a million tasks of {} features in {} s",
        [Phrase("gpu.md", r"d = (\d+)"), Cell("gpu.md", "float64", "s", ".0f")],
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
    (
        "paper.md",
        "(paper, ℓ2²) {} / {} / {} against BMSL {} / {} / {} and CCMTL {} / {} / {}, whose",
        paper("table1", "F1", PUBLISHED, PAPER, "BMSL", CCMTL),
    ),
    ("paper.md", "GGMTL (default) on the same: {} / {} / {} |", paper("table1", "F1", PUBLISHED, DEFAULT)),
    (
        "paper.md",
        "but on Star | {} / {} / {} against CCMTL {} / {} / {} |",
        paper("table1", "Accuracy", PUBLISHED, PAPER, CCMTL),
    ),
    (
        "paper.md",
        "20 noisy rows: GGMTL (paper, ℓ2²) F1 {} / {} / {} against unweighted neighbours {} / {} / {} |",
        paper("table1", "F1", TEXT, PAPER, CCMTL),
    ),
    (
        "paper.md",
        "edges go ({} % / {} % / {} %)",
        [Cell("paper/figures.md", f"{name} | {PAPER}", "removed", ".0f") for name in ("line", "tree", "star")],
    ),
    (
        "paper.md",
        "GGMTL (paper, ℓ2²) removes {} %",
        [Cell("paper/figures.md", f"tmy3 h=8 every=8 | {PAPER}", "removed", ".0f")],
    ),
    ("paper.md", "GGMTL (default) on the same: F1 {} / {} / {} |", paper("table1", "F1", TEXT, DEFAULT)),
    (
        "paper.md",
        "GGMTL (paper, ℓ2²) {} / {}, CCMTL {} / {}, MTRL {} / {} (Line / Tree); the default, which shrinks, {} / {} |",
        paper("table1", "RMSE", "line published, tree published", PAPER, CCMTL, "MTRL", DEFAULT),
    ),
    (
        "paper.md",
        "better on Star ({} against {})",
        paper("table1", "RMSE", "star published", DEFAULT, PAPER),
    ),
    (
        "paper.md",
        "default {} / {} / {}, GGMTL (paper, ℓ2²) {} / {} / {}, hub {} / {} / {}, CCMTL {} / {} / {}, "
        "BMSL {} / {} / {}, independent {} / {} / {} |",
        paper("table1", "RMSE", TEXT, DEFAULT, PAPER, "Hub", CCMTL, "BMSL", "Independent"),
    ),
    (
        "paper.md",
        "of the text: default {}, GGMTL (paper, ℓ2²) {}, CCMTL {}, mixedlm {}; over three runs MSSL {}, BMSL {} |",
        paper("table2", FOLDS, "parkinson r=0.3", DEFAULT, PAPER, CCMTL, MIXED, "MSSL", "BMSL"),
    ),
    (
        "paper.md",
        "as a 19th: default {}, GGMTL (paper, ℓ2²) {}, CCMTL {}, mixedlm {}, independent {}; over three runs MSSL {}, "
        "BMSL {} |",
        paper("table2", TIMED, "parkinson r=0.3 time", DEFAULT, PAPER, CCMTL, MIXED, "Independent", "MSSL", "BMSL"),
    ),
    (
        "paper.md",
        "r = .3: default {}, GGMTL (paper, ℓ2²) {}, CCMTL {}, mixedlm {}, independent {} |",
        paper("table2", VISITS, "parkinson r=0.3 time visit", DEFAULT, PAPER, CCMTL, MIXED, "Independent"),
    ),
    (
        "paper.md",
        "| default {}, GGMTL (paper, ℓ2²) {}, CCMTL {}, hub {}, mixedlm {}, pooled {}; over three runs BMSL {}, "
        "MTRL {}, MSSL {} |",
        paper("table3", SCHOOL, "school r=0.2", DEFAULT, PAPER, CCMTL, "Hub", MIXED, "Pooled", "BMSL", "MTRL", "MSSL"),
    ),
    (
        "paper.md",
        "CCMTL 9.994): default {}, GGMTL (paper, ℓ2²) {}, CCMTL {}, mixedlm {} |",
        paper("table3", SCHOOL, "school r=0.5", DEFAULT, PAPER, CCMTL, MIXED),
    ),
    (
        "paper.md",
        "8 hours ahead: default {}, GGMTL (paper, ℓ2²) {}, CCMTL {}, mixedlm {}, **pooled {}** |",
        paper("table4", SCHOOL, "tmy3 h=8 every=8", DEFAULT, PAPER, CCMTL, MIXED, "Pooled"),
    ),
]


def pattern(sentence: str) -> re.Pattern[str]:
    """The sentence with any numbers, and with any line breaks."""
    parts = [r"\s+".join(map(re.escape, part.split(" "))) for part in re.sub(r"\s", " ", sentence).split("{}")]
    return re.compile(r"(\d[\d.,]*(?<=\d)(?:e-\d+)?)".join(parts))


def quoted_and_measured(page: str, sentence: str, cells: Sequence[Source]) -> tuple[list[str], list[str]]:
    """The numbers in the page, and those in the results."""
    found = pattern(sentence).search((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert found is not None, f"{page} does not say: {sentence}"
    return list(found.groups()), [cell.text() for cell in cells]


def write(page: str, sentence: str, cells: Sequence[Source]) -> None:
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
