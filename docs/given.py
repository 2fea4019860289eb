"""Numbers of the documentation that nobody measured, and those that are neither measured nor listed here.

Sizes of made-up examples, definitions, names, limits and citations, as regular expressions by page. Limits have tests
of their own; citations stand in the paper.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
QUOTED = runpy.run_path(str(ROOT / "docs" / "quoted.py"))
GIVEN: dict[str, list[str]] = {
    "../README.md": [
        r"300 shops",
        r"40 patients",
        r"1,000 (weather )?stations",
        r"its other 357 days",
        r"Differences of 0\.1 %",
        r"more than 255 tasks",
        r"Python 3\.11",
        r"ECML PKDD 2020",
        r"BSD 3-Clause",
    ],
    "accuracy.md": [],
    "coming_from.md": [r"lme4", r"18 people"],
    "faq.md": [r"weight 1 and another 0\.4"],
    "glossary.md": [r"support 1\b", r"from 0 to 1\.", r"all 1 do"],
    "guide.md": [
        r"\[0, 1\]",
        r"Use 50 resamples",
        r"w_0",
        r"1,020 weather stations",
        r"90 % intervals",
        r"up to 0\.2 %",
        r"Algorithm 1",
    ],
    "how_it_works.md": [r"between 0 and 1", r"\[0, 1\]", r'by 5 %"'],
    "index.md": [r"^[123]\. ", r"lme4"],
    "methods.md": [r"Algorithm 1", r"for 3 to a million tasks", r"\(.* 20\d\d\)|et al\., 20\d\d"],
    "paper.md": [
        r"of 16 November 2026",
        r"on 20 %",
        r"Algorithm 1",
        r"\(?Eq\. \d+a?\)?",
        r"\[0, 1\]",
        r"\(m, 2\)",
        r"Theorem \d",
        r"r = \.\d",
        r"TMY3",
        r"18 features",
        r"as a 19th",
        r"8 hours ahead",
        r"20 (noisy )?rows",
        r"\(35 \+ 5 is 40, not 42\)",
        # What the paper prints, and what follows from it without a measurement: tests/bilevel/test_paper_errata.py.
        r"\.905 / \.938 / \.835",
        r"\(paper: [^)]*\)",
        r"^\| [^|]* \|",
        r"is 0\b",
        r"at 0\b",
        r"so 0 is",
        r"XOR\([^)]*\)( = 1)?",
        r"ℓ[12]",
        r"20 noise-free rows",
        r"does not score 1",
        r"N\(0, 1\)",
        r"10 weeks",
        r"d\(d\+1\)/2",
        r"20 coefficients",
        r"λ/2",
    ],
    "scaling.md": [
        r"relative 1e-10",
        r"32 MB",
        r"16 MB",
        r"^\| [\d,]+ \| \d+ \| .*$",
        r"float(32|64)",
        r"H200",
        r"0/1 feature",
        r"200 at most",
        r"0\.9 beside",
        r"90 % intervals",
        r"noise is 1\.",
    ],
    "start.md": [r"12 stores", r"15 weeks", r"65 (tasks|schools)", r"up to 0\.2 %"],
    "trust.md": [
        r"1e-?\d+",
        r"(of|over) \d+ decades",
        r"20,000",
        r"2⁻⁴⁰⁰ to 2⁴⁰⁰",
        r"\[0, 1\]",
        r"UTF-8",
        r"SHA-256",
        r"256 MiB",
        r"95 %",
        # Read from the pages that the commands wrote, by another test.
        r"15,000 in all",
        r"48 of 48",
        r"2e-5",
    ],
}


def not_quoted(page: str) -> list[str]:
    """Lines of a page with numbers that are neither quoted, nor given, nor in code, formulas and links."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for quoted, sentence, _ in QUOTED["QUOTES"]:
        if quoted == page:
            text = QUOTED["pattern"](sentence).sub(lambda found: re.sub(r"[\d.,]", " ", found[0]), text)
    marked = r"<!-- comparison.*?end of comparison -->", r"```.*?```", r"\$\$.*?\$\$", r"^    .*?$"
    for expression in (*marked, r"\$[^$]*?\$", r"`[^`]*?`", r"\]\([^)]*?\)"):
        text = re.sub(expression, lambda found: re.sub(r"\d", " ", found[0]), text, flags=re.DOTALL | re.MULTILINE)
    for expression in GIVEN[page]:
        text = re.sub(expression, lambda found: re.sub(r"\d", " ", found[0]), text, flags=re.MULTILINE)
    return [line for line in text.splitlines() if re.search(r"\d", line)]
