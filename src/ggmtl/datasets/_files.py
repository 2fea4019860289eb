"""Data files: find or download them, check their bytes, read columns and arrays."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen
from zipfile import BadZipFile

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from ggmtl.errors import InputError, did_you_mean
from ggmtl.runtime.files import write_whole

DATA_HOME = "GGMTL_DATA_HOME"
MAX_DOWNLOAD = 64 * 2**20
MAX_UNPACKED = 4 * MAX_DOWNLOAD
TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class DataFile:
    """A public file: where it lies below the data folder, its hash, its home, its address if it has one.

    Parameters
    ----------
    path : str
        Place below ``GGMTL_DATA_HOME`` or the cache folder, such as ``"school/school.mat"``.
    sha256 : str
        Hash of the bytes that the loader was written for.
    home : str
        Where a person finds the data.
    url : str, optional
        An https address of the file, or of a zip archive that holds it. None: there is no stable address.
    member : str, optional
        Name of the file inside the archive at `url`.
    """

    path: str
    sha256: str
    home: str
    url: str | None = None
    member: str | None = None


def find_file(file: DataFile, path: str | Path | None = None, download: bool = False) -> Path:
    """Path of a file: the user's own, else below ``GGMTL_DATA_HOME``, else in the cache, else downloaded.

    A file that the user names by `path` is taken as it is; any other must have the known SHA-256.
    """
    if path is not None:
        given = Path(path).expanduser()
        if not given.is_file():
            raise InputError(f"path must be an existing file. Got {str(given)!r} instead.")
        return given
    for folder in _folders():
        candidate = folder / file.path
        if candidate.is_file():
            _check_bytes(file, candidate.read_bytes(), str(candidate))
            return candidate
    if not download:
        raise InputError(_absent_message(file))
    return _download(file, cache_folder() / file.path)


def cache_folder() -> Path:
    """Folder of downloaded files: ``$XDG_CACHE_HOME/ggmtl``, by default ``~/.cache/ggmtl``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ggmtl"


def _folders() -> list[Path]:
    home = os.environ.get(DATA_HOME)
    return ([Path(home).expanduser()] if home else []) + [cache_folder()]


def _absent_message(file: DataFile) -> str:
    looked = " and ".join(str(folder) for folder in _folders())
    remedy = (
        "Pass download=True to fetch it, or put it there yourself."
        if file.url
        else f"It has no stable address to download from: put it in a folder and set {DATA_HOME} to that."
    )
    return (
        f"The data file {file.path!r} was not found below {looked} "
        f"({DATA_HOME} is {'set' if os.environ.get(DATA_HOME) else 'not set'}). {remedy} Its public home: "
        f"{file.home}."
    )


def _check_bytes(file: DataFile, content: bytes, origin: str) -> None:
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise InputError(
            f"{origin} must have the SHA-256 {file.sha256}. Got {digest} instead: the file is damaged or "
            f"another version. Replace it (public home: {file.home}), or name a file of your own with path= "
            "to load it as it is."
        )


def _download(file: DataFile, destination: Path) -> Path:
    if file.url is None:
        raise InputError(_absent_message(file))
    content = _fetch(file, file.url)
    if file.member is not None:
        content = _unzip(file, content)
    _check_bytes(file, content, file.url)
    destination.parent.mkdir(parents=True, exist_ok=True)
    write_whole(destination, content)
    return destination


def _fetch(file: DataFile, url: str) -> bytes:
    if not url.startswith("https://"):
        raise InputError(f"Data are downloaded over https only. Got {url!r} instead.")
    try:
        with urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            if not response.geturl().startswith("https://"):
                raise InputError(f"{url} leads to {response.geturl()}, which is not https; nothing was downloaded.")
            content = response.read(MAX_DOWNLOAD + 1)
    except OSError as error:
        raise InputError(
            f"{file.path!r} could not be downloaded from {url} ({error}). Without a network, put the file "
            f"below a folder and set {DATA_HOME} to that folder. Its public home: {file.home}."
        ) from error
    if len(content) > MAX_DOWNLOAD:
        raise InputError(f"{url} is larger than {MAX_DOWNLOAD // 2**20} MiB, which {file.path!r} is not.")
    return content


def _unzip(file: DataFile, content: bytes) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive, archive.open(file.member or "") as stream:
            unpacked = stream.read(MAX_UNPACKED + 1)
    except (zipfile.BadZipFile, KeyError) as error:
        raise InputError(
            f"{file.url} must be a zip archive that holds {file.member!r} ({error}). Its public home: {file.home}."
        ) from error
    # What a member declares as its size need not be true: only what comes out counts.
    if len(unpacked) > MAX_UNPACKED:
        raise InputError(f"{file.url} unpacks to more than {MAX_UNPACKED // 2**20} MiB, which {file.path!r} does not.")
    return unpacked


def read_csv(path: Path, required: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Columns of a comma-separated file with a header line, as arrays of strings."""
    with path.open(newline="", encoding="utf-8-sig") as stream:
        rows = [row for row in csv.reader(stream) if row]
    if len(rows) < 2:
        raise InputError(f"{path} must have a header line and at least one row. Got {len(rows)} lines instead.")
    header = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise InputError(f"{path}, line {number}: {len(header)} fields were expected. Got {len(row)} instead.")
    if len(set(header)) < len(header):
        raise InputError(f"{path} must have columns of different names. Got {', '.join(header)} instead.")
    _check_present(path, required, header, "column")
    return dict(zip(header, np.array(rows[1:]).T))


def read_npz(path: Path, required: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Arrays of an NPZ file; pickled objects raise an error."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, BadZipFile, AttributeError, TypeError) as error:
        raise InputError(f"{path} must be an NPZ file of plain arrays ({error}).") from error
    _check_present(path, required, list(arrays), "array")
    return arrays


def read_mat(path: Path, required: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Variables of a MATLAB 5 file."""
    try:
        variables = loadmat(path)
    except (ValueError, TypeError, NotImplementedError, MatReadError) as error:
        raise InputError(f"{path} must be a MATLAB 5 file ({error}).") from error
    _check_present(path, required, [name for name in variables if not name.startswith("__")], "variable")
    return variables


def numbers(path: Path, columns: dict[str, np.ndarray], name: str) -> np.ndarray:
    """One column (or array) as finite float64 values."""
    try:
        values = np.asarray(columns[name]).astype(np.float64)
    except ValueError as error:
        raise InputError(f"{path}: {name!r} must be numeric ({error}).") from error
    bad = ~np.isfinite(values)
    if bad.any():
        where = tuple(int(k) for k in np.argwhere(bad)[0])
        raise InputError(
            f"{path}: {name!r} has {int(bad.sum())} missing or infinite values (first at {where}). "
            "Fill them or drop those rows."
        )
    return values


def _check_present(path: Path, required: tuple[str, ...], present: list[str], kind: str) -> None:
    for name in required:
        if name not in present:
            raise InputError(
                f"{path} has no {kind} {name!r}.{did_you_mean(name, present)} Needed: {', '.join(required)}. "
                f"Got {', '.join(present[:12])}{' …' if len(present) > 12 else ''} instead."
            )
