"""Which weather stations behave alike? A forecast model per station, and the learned graph on a map.

Needs the TMY3 file (see ``ggmtl.datasets.load_tmy3``), e.g. ``GGMTL_DATA_HOME=… python examples/weather_stations.py``.
"""

import argparse
from pathlib import Path

from ggmtl import Coordinates, GGMTLRegressor, plot
from ggmtl.datasets import load_tmy3
from ggmtl.inspection import task_rmse


def main() -> None:
    """Fit 109 stations, print errors, draw the map."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=4, help="use every k-th hour")
    parser.add_argument("--output", type=Path, default=Path("docs/images/weather_stations.png"))
    arguments = parser.parse_args()

    data = load_tmy3(109, horizon=8, every=arguments.every)
    nearby = Coordinates(data.coordinates, k=6)
    model = GGMTLRegressor(candidates=nearby).fit(data.X, data.y, tasks=data.tasks)
    print(f"{len(model.tasks_)} stations, {model.graph_.n_edges} edges")
    for level in model.path_:
        mark = "  <- chosen" if level["chosen"] else ""
        print(f"{level['level']:>12}  cross-validated error {level['error']:.3f} °C, {level['n_edges']} edges{mark}")
    test = data.test
    predicted = model.predict(test.X, tasks=test.tasks)
    print(f"error on the rest of the year: {task_rmse(test.y, predicted, test.tasks):.3f} °C")

    axes = plot.map(model, data.coordinates)
    axes.figure.savefig(arguments.output, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
