"""Make the file of daily mean temperatures that comes with the package.

    python tools/daily_temperatures.py

From the hourly dry-bulb temperatures of all 1,020 TMY3 stations (``tmy3/tmy3_drybulb_all.npz`` below the folder that
``GGMTL_DATA_HOME`` names; see ``ggmtl.datasets.load_tmy3``) to the mean of each day, in tenths of a degree Celsius.
Values are kept as differences between consecutive days, which compress better. Nothing is corrected.
"""

from pathlib import Path

import numpy as np

from ggmtl.datasets._files import find_file
from ggmtl.datasets.temperature import TMY3_ALL

TARGET = Path(__file__).parents[1] / "src" / "ggmtl" / "datasets" / "files" / "stations.npz"
HOURS = 24


def main() -> None:
    """Write the file."""
    with np.load(find_file(TMY3_ALL, None, False)) as source:
        hourly = source["temp_decic"].astype(np.float64)
        names = np.char.add(np.char.add(source["name"], ", "), source["state"])
        place = {name: source[name] for name in ("lat", "lon", "elev")}
    daily = np.rint(hourly.reshape(len(hourly), -1, HOURS).mean(axis=2)).astype(np.int16)
    change = np.diff(daily, axis=1, prepend=np.int16(0))
    order = np.argsort(names)
    np.savez_compressed(
        TARGET,
        station=names[order],
        change_decic=change[order],
        latitude=place["lat"][order].astype(np.float32),
        longitude=place["lon"][order].astype(np.float32),
        elevation=place["elev"][order].astype(np.int16),
    )


if __name__ == "__main__":
    main()
