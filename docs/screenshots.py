"""Draw the pictures of the report page in docs/images (needs playwright and chromium).

``python docs/screenshots.py`` draws all of them, ``python docs/screenshots.py demo`` those named.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from playwright.sync_api import sync_playwright

from ggmtl import GGMTLRegressor
from ggmtl.cli.demo import load_demo
from ggmtl.cli.options import Which
from ggmtl.datasets import load_exam, make_clusters
from ggmtl.report import write_report

IMAGES = Path(__file__).parent / "images"


def clusters(page_file: Path) -> None:
    """Tasks in clusters."""
    data = make_clusters(n_tasks=65, n_clusters=6, n_features=5, n_samples=25, random_state=0)
    names = np.array([f"Task {task + 1}" for task in data.tasks])
    write_report(GGMTLRegressor().fit(data.X, data.y, tasks=names), page_file)


def schools(page_file: Path) -> None:
    """Schools without links."""
    data = load_exam()
    labels = np.array([f"School {label}" for label in data.tasks.tolist()])
    table = pd.DataFrame(data.X, columns=list(data.columns))
    model = GGMTLRegressor().fit(table, data.y, tasks=labels)
    write_report(model, page_file, title="Exam scores in 65 Inner London schools")


def demo(page_file: Path) -> None:
    """The weather stations of ``ggmtl demo``."""
    shown = load_demo(Which.stations)
    model = GGMTLRegressor(task=shown.task, candidates=shown.candidates).fit(shown.frame, shown.data.y)
    write_report(model, page_file, title=shown.title)


# Who writes the page, light or dark, and whether the drawing alone is shown.
PAGES: dict[str, tuple[Callable[[Path], None], Literal["light", "dark"], bool]] = {
    "report-light": (clusters, "light", False),
    "report-dark": (schools, "dark", False),
    "demo": (demo, "light", True),
}


def main(wanted: Sequence[str]) -> None:
    """Write the pages and photograph them."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for name in wanted or PAGES:
            write, scheme, drawing = PAGES[name]
            page_file = Path(folder) / f"{name}.html"
            write(page_file)
            page = browser.new_page(viewport={"width": 1400, "height": 1120}, color_scheme=scheme)
            page.goto(page_file.as_uri())
            # Down to the end of the drawing, so that nothing is cut.
            stage = page.locator(".stage")
            frame = stage.bounding_box()
            assert frame is not None
            page.set_viewport_size({"width": 1400, "height": int(frame["y"] + frame["height"] + 32)})
            page.wait_for_timeout(500)
            (stage if drawing else page).screenshot(path=IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
