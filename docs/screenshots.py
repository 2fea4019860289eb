"""Draw the pictures of the report page in docs/images (needs playwright and chromium)."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from playwright.sync_api import sync_playwright

from ggmtl import GGMTLRegressor
from ggmtl.datasets import load_exam, make_clusters
from ggmtl.report import write_report

IMAGES = Path(__file__).parent / "images"


def main() -> None:
    """Clusters in light, schools in dark."""
    clusters = make_clusters(n_tasks=65, n_clusters=6, n_features=5, n_samples=25, random_state=0)
    names = np.array([f"Task {task + 1}" for task in clusters.tasks])
    schools = load_exam()
    labels = np.array([f"School {label}" for label in schools.tasks.tolist()])
    table = pd.DataFrame(schools.X, columns=list(schools.columns))
    pages = {
        "report-light": (clusters.X, clusters.y, names, None, "light"),
        "report-dark": (table, schools.y, labels, "Exam scores in 65 Inner London schools", "dark"),
    }
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for name, (X, y, tasks, title, scheme) in pages.items():
            page_file = Path(folder) / f"{name}.html"
            write_report(GGMTLRegressor().fit(X, y, tasks=tasks), page_file, title=title)
            page = browser.new_page(viewport={"width": 1400, "height": 1120}, color_scheme=scheme)
            page.goto(page_file.as_uri())
            # Down to the end of the drawing, so that nothing is cut.
            frame = page.locator(".stage").bounding_box()
            page.set_viewport_size({"width": 1400, "height": int(frame["y"] + frame["height"] + 32)})
            page.wait_for_timeout(500)
            page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
