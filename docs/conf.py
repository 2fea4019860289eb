"""How the documentation is built. Nothing here, and nothing on the pages, needs a network."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import ggmtl

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project, author = "ggmtl", "the ggmtl developers"
version = release = ggmtl.__version__
copyright = f"2026, {author}"

extensions = ["sphinx.ext.autodoc", "numpydoc", "myst_parser", "sphinx_gallery.gen_gallery", "command_help", "mathml"]
exclude_patterns = ["_build", "images"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
nitpicky = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
html_math_renderer = "mathml"
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]

html_theme = "pydata_sphinx_theme"
html_title = "ggmtl"
html_static_path = ["_static"]
html_css_files = ["ggmtl.css"]
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 9,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
# Pages without pages below them need no list of those.
html_sidebars = {
    name: []
    for name in (
        "index",
        "start",
        "guide",
        "how_it_works",
        "coming_from",
        "methods",
        "faq",
        "paper",
        "scaling",
        "accuracy",
        "glossary",
    )
}

# ---------------------------------------------------------------------- studies

# Which study needs which file below GGMTL_DATA_HOME; the others run everywhere.
STUDY_FILES = {
    "landmines": "landmine/LandmineData.mat",
    "parkinson": "parkinson/parkinsons_updrs.data",
    "weather_stations": "tmy3/tmy3_drybulb_109.npz",
}


def has_file(name: str) -> bool:
    """Whether the file is in the user's data folder or in the cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ggmtl"
    folders = [Path(os.environ[key]) for key in ("GGMTL_DATA_HOME",) if os.environ.get(key)]
    return any((folder / name).is_file() for folder in (*folders, cache))


def skipped_studies() -> set[str]:
    """Studies whose data are not here."""
    return {study for study, file in STUDY_FILES.items() if not has_file(file)}


SKIPPED = skipped_studies()
RUN = sorted({study.stem for study in (HERE.parent / "examples").glob("*.py")} - SKIPPED)

sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples"),
    "gallery_dirs": "studies",
    "filename_pattern": rf"/({'|'.join(RUN)})\.py$",
    "ignore_pattern": r"__init__\.py",
    "within_subsection_order": "study_order.study_order",
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    # Figures must be those of the code as it is now.
    "run_stale_examples": True,
    "remove_config_comments": True,
    "matplotlib_animations": False,
    "copyfile_regex": "",
    "min_reported_time": 1,
    # The page of running times would load scripts from elsewhere.
    "write_computation_times": False,
}
warnings.filterwarnings("ignore", message=".*FigureCanvasAgg is non-interactive.*")


def note_skipped_study(app: Any, name: str, source: list[str]) -> None:
    """Say on the page of a study that it was not run, and why."""
    folder, _, study = name.rpartition("/")
    if folder == "studies" and study in SKIPPED:
        note = (
            f"\n\n.. warning::\n\n   This study was not run when the page was built: the file\n"
            f"   ``{STUDY_FILES[study]}`` was not found. Set ``GGMTL_DATA_HOME`` to the folder that holds it and\n"
            f"   build again. The code is complete; its results are missing.\n\n"
        )
        source[0] = re.sub(r"(\n=+\n)", lambda match: match.group(1) + note, source[0], count=1)


# ---------------------------------------------------------------------- links into the repository


def links_to_folders_as_text(app: Any, name: str, source: list[str]) -> None:
    """Folders of the repository are not part of the pages: keep the words, drop the link."""

    def text(match: re.Match[str]) -> str:
        return match.group(1) if (HERE / match.group(2)).is_dir() else match.group(0)

    source[0] = re.sub(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)", text, source[0])


# ---------------------------------------------------------------------- equations in docstrings


def equations_as_text(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Show the indented equations at the head of a docstring as they were typed."""
    end = next((k for k, line in enumerate(lines) if line and set(line.strip()) == {"-"}), len(lines) + 1) - 1
    shown: list[str] = []
    inside = False
    for line in lines[:end]:
        indented = line.startswith("    ")
        if indented and not inside and shown and not shown[-1].strip():
            shown += [".. code-block:: text", ""]
            inside = True
        elif line.strip() and not indented:
            inside = False
        shown.append(line)
    lines[:end] = shown


def setup(app: Any) -> None:
    """Connect the functions above."""
    app.connect("source-read", links_to_folders_as_text)
    app.connect("source-read", note_skipped_study)
    app.connect("autodoc-process-docstring", equations_as_text, priority=100)
