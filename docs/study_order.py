"""The order of the studies: those that always run come first."""

ORDER = (
    "schools.py",
    "traffic_deaths.py",
    "column_transformer.py",
    "landmines.py",
    "parkinson.py",
    "weather_stations.py",
)


def study_order(filename: str) -> int:
    """Position of a script on the page of studies."""
    return ORDER.index(filename) if filename in ORDER else len(ORDER)
