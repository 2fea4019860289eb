"""Make the file of coastlines and borders behind the maps of tasks.

    pip download --no-deps geopandas==0.14.4 plotly_geo==1.0.0
    python tools/outlines.py geopandas-0.14.4-py3-none-any.whl plotly_geo-1.0.0-py3-none-any.whl

Both packages bundle public-domain data: Natural Earth's countries at 1:110 million (geopandas; all but the United
States are used), and the U.S. Census Bureau's cartographic boundaries of states, 2016 (plotly_geo). Lines shared by two
areas are kept once, and are thinned. Points are rounded to hundredths of a degree.
"""

import itertools
import struct
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parents[1] / "src" / "ggmtl" / "plot" / "outlines.npz"
COUNTRIES = "geopandas/datasets/naturalearth_lowres/naturalearth_lowres"
STATES = "_plotly_geo/package_data/cb_2016_us_state_500k"
LEFT_OUT = "United States of America"
# Degrees: largest distance of a point left out from the line, size of the smallest area kept, unit of the file.
TOLERANCE, SMALLEST, UNIT = {COUNTRIES: 0.12, STATES: 0.045}, {COUNTRIES: 0.0, STATES: 0.25}, 0.01


def rings_of(archive: zipfile.ZipFile, stem: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Closed rings of the areas of a shapefile, in degrees: those used, and those left out."""
    names = _names(archive.read(f"{stem}.dbf"))
    content, place, used, others = archive.read(f"{stem}.shp"), 100, [], []
    for name in names:
        words = struct.unpack(">2i", content[place : place + 8])[1]
        record, place = content[place + 8 : place + 8 + 2 * words], place + 8 + 2 * words
        n_parts, n_points = struct.unpack("<2i", record[36:44])
        starts = np.frombuffer(record, "<i4", n_parts, 44)
        points = np.frombuffer(record, "<f8", 2 * n_points, 44 + 4 * n_parts).reshape(-1, 2)
        rings = [ring for ring in np.split(points, starts[1:]) if np.ptp(ring, axis=0).max() >= SMALLEST[stem]]
        (others if name == LEFT_OUT else used).extend(rings)
    return used, others


def _names(table: bytes) -> list[str]:
    """The column "name" or "NAME" of a dBase table."""
    n_rows, header, width = struct.unpack("<ihh", table[4:12])
    place = 1
    for first in range(32, header - 1, 32):
        field, length = table[first : first + 11].split(b"\0")[0], table[first + 16]
        if field.lower() == b"name":
            rows = [table[header + k * width + place : header + k * width + place + length] for k in range(n_rows)]
            return [row.decode("latin-1").strip() for row in rows]
        place += length
    raise SystemExit("The table has no column of names.")


def segments_of(rings: list[np.ndarray]) -> set[frozenset[tuple[float, ...]]]:
    """Pairs of neighbouring points, each once; the frame of the map, at the date line and the pole, is no coast."""
    found = set()
    for ring in rings:
        points = list(map(tuple, ring.round(6).tolist()))
        for a, b in itertools.pairwise(points):
            if a != b and not (a[0] == b[0] and abs(a[0]) == 180.0) and not a[1] == b[1] == -90.0:
                found.add(frozenset((a, b)))
    return found


def lines_of(segments: set[frozenset[tuple[float, ...]]]) -> list[np.ndarray]:
    """Lines from junction to junction."""
    links: dict[tuple[float, ...], set[tuple[float, ...]]] = defaultdict(set)
    for a, b in segments:
        links[a].add(b)
        links[b].add(a)
    junctions = {point for point, near in links.items() if len(near) != 2}
    lines = []
    for start in [*sorted(junctions), *sorted(links)]:
        while links[start]:
            line = [start]
            while links[line[-1]] and (len(line) == 1 or line[-1] not in junctions):
                there = min(links[line[-1]])
                links[line[-1]].discard(there)
                links[there].discard(line[-1])
                line.append(there)
            lines.append(np.array(line))
    return lines


def thinned(line: np.ndarray, tolerance: float) -> np.ndarray:
    """Douglas and Peucker: the ends, and points farther from the straight line than the tolerance."""
    keep = np.zeros(len(line), dtype=bool)
    keep[[0, -1]] = True
    parts = [(0, len(line) - 1)]
    while parts:
        first, last = parts.pop()
        inner, way = line[first + 1 : last] - line[first], line[last] - line[first]
        if not len(inner):
            continue
        along = np.clip(inner @ way / max(way @ way, 1e-12), 0.0, 1.0)
        distance = np.linalg.norm(inner - along[:, None] * way, axis=1)
        if distance.max() > tolerance:
            far = first + 1 + int(distance.argmax())
            keep[far] = True
            parts += [(first, far), (far, last)]
    return line[keep]


def main() -> None:
    """Write the file."""
    lines = []
    for path, stem in zip(sys.argv[1:], (COUNTRIES, STATES), strict=True):
        with zipfile.ZipFile(path) as archive:
            used, others = rings_of(archive, stem)
        # Borders with the area left out come from the other source.
        found = lines_of(segments_of(used) - segments_of(others))
        lines += [np.rint(thinned(line, TOLERANCE[stem]) / UNIT).astype(int) for line in found]
    lengths = np.array([len(line) for line in lines])
    # Differences between neighbouring points compress better than the points.
    steps = np.concatenate([np.diff(line, axis=0, prepend=0) for line in lines])
    np.savez_compressed(TARGET, length=lengths.astype(np.uint16), step=steps.T.astype(np.int16))
    sys.stdout.write(f"{len(lines)} lines, {len(steps)} points, {TARGET.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
