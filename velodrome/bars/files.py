"""Data files as tables: finding them, detecting separator and header, and reading them with Polars.

Text files come in as text columns; `values.py` parses them, so that a value that cannot be read is still there to be
shown.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.bars.columns import TIME_SPELLINGS, count_price_names, spelling_key
from velodrome.bars.frame import BAR_COLUMNS, Bars
from velodrome.bars.makes.headers import KLINES, about_headless, are_klines, is_headless, ticker_rows
from velodrome.errors import DataError, did_you_mean, printable
from velodrome.writing import write_frame

TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
PARQUET_SUFFIXES = (".parquet", ".pq")
SUFFIXES = (*TEXT_SUFFIXES, *PARQUET_SUFFIXES)
SEPARATORS = (",", ";", "\t")
PREAMBLE_LINES = 30  # no header is looked for further down
PREAMBLE_BYTES = 1 << 16
TICKER_LINES = 3  # prices, tickers and the name of the index, as pandas writes columns of two levels
# Prices that never move shrink to a nineteenth of their text. What grows more than this was made to fill the memory.
MOST_GROWTH = 100
ALWAYS_FITS = 1 << 26  # bytes
MOST_COLUMNS = 10_000
PACKED = (b"\x1f\x8b", b"x\x01", b"x^", b"x\x9c", b"x\xda", b"\x28\xb5\x2f\xfd")  # gzip, zlib, Zstandard


@dataclass(frozen=True)
class Table:
    """One file, or one frame of a program, as received."""

    origin: str  # path of the file, or which frame it is
    frame: pl.DataFrame  # text columns, or typed ones from Parquet and from frames
    row: NDArray[np.int64]  # of each frame row: the line in a text file, counted from 1, or the row, from 0
    separator: str | None  # None: not a text file
    symbol: str  # where no column holds one: the file's name without its ending
    named: bool = False  # the symbol was given with the table, whatever a column says
    roles: Mapping[str, str] = field(default_factory=dict)  # columns whose meaning is known, such as a time index
    read_as: str = ""  # how it was read, where the file itself does not say how

    def place(self, index: int) -> str:
        """Return where a frame row stands in the file, as an editor or Polars counts."""
        row = self.row[index]
        return f"row {row} (counted from 0)" if self.separator is None else f"line {row}"


def write_bars(bars: Bars, folder: Path) -> None:
    """Write bars into an empty folder, a Parquet file for each symbol, which `read_bars` reads to the same bits."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (symbol, series) in enumerate(bars.series.items()):
        names = ("close", "volume") if series.close_only else BAR_COLUMNS
        moments = pl.Series(series.time).cast(pl.Datetime("ns", "UTC"))
        columns = {"time": moments, "symbol": pl.repeat(symbol, len(series), eager=True)}
        columns |= {name: pl.Series(series.column(name)) for name in (*names, *series.extra)}
        write_frame(pl.DataFrame(columns), folder / f"{number}.parquet")


def suffix_of(file: Path) -> str:
    """Return the file's ending among those that can be read, as spelled in its name, or ''."""
    name = file.name.lower()
    known = max((suffix for suffix in SUFFIXES if name.endswith(suffix)), key=len, default="")
    return file.name[len(file.name) - len(known) :]


def stem_of(file: Path) -> str:
    """Return the file's name without its ending."""
    return file.name[: len(file.name) - len(suffix_of(file))]


def find_files(path: str | Path) -> list[Path]:
    """Return the data files at the path: the file, or those of the folder and of its folders, by name."""
    path = Path(path).expanduser()
    if not path.exists():
        folder = path.parent
        neighbours = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        where = f"{folder} holds {', '.join(neighbours[:10]) or 'nothing'}" if folder.is_dir() else f"nor is {folder}"
        raise DataError(
            f"{path}: no such file or folder; {where}.{did_you_mean(path.name, neighbours)} Check the path."
        )
    if path.is_file():
        if not suffix_of(path):
            raise DataError(f"{path}: not a data file by its name; it must end in {', '.join(SUFFIXES)}. Rename it.")
        return [path]
    entries = [*path.glob("*"), *path.glob("*/*")]
    visible = (entry for entry in entries if not any(part.startswith(".") for part in entry.relative_to(path).parts))
    files = sorted(entry for entry in visible if entry.is_file() and suffix_of(entry))
    if not files:
        raise DataError(
            f"{path}: no data files in this folder or the folders in it; "
            f"there must be one that ends in {', '.join(SUFFIXES)}."
        )
    return files


def read_table(file: Path, named: Collection[str] = ()) -> Table:
    """Return the file's table, or refuse a file without rows or that is not what its ending says.

    named: columns that the caller knows the header to have.
    """
    table = read_parquet(file) if suffix_of(file).lower() in PARQUET_SUFFIXES else read_text(file, named)
    if len(table.frame) == 0:
        raise DataError(f"{file}: no rows below the header. Check that the export finished, or remove the file.")
    # Names are shown in terminals, messages and reports: from here on, what a terminal would obey is spelled out.
    names = {name: plain for name in table.frame.columns if (plain := printable(name, kept="")) != name}
    frame = table.frame.rename(dict(zip(names, unique_names(list(names.values())), strict=True))) if names else None
    origin, symbol = printable(table.origin, kept=""), printable(table.symbol, kept="")
    return replace(table, origin=origin, symbol=symbol, frame=table.frame if frame is None else frame)


def read_parquet(file: Path) -> Table:
    try:
        columns, rows = len(pl.read_parquet_schema(file)), pl.scan_parquet(file).select(pl.len()).collect().item()
        check_growth(file, 8 * rows * columns, file.stat().st_size)
        check_columns(file, columns)
        frame = pl.read_parquet(file)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise DataError(f"{file}: not a Parquet file that Polars can read ({error}). Export it again.") from error
    return Table(str(file), frame, np.arange(len(frame)), None, stem_of(file))


def read_text(file: Path, named: Collection[str] = ()) -> Table:
    content = file_bytes(file)
    if not content.strip():
        raise DataError(f"{file}: the file is empty. Check that the export finished, or remove the file.")
    lines = first_lines(content)
    if (levels := ticker_rows([fields_of(line, ",") for line in lines[:TICKER_LINES]])) is not None:
        check_columns(file, len(levels[0]))
        time = fields_of(lines[TICKER_LINES - 1], ",")[0]
        names = [time, *(f"column {number}" for number in range(1, len(levels[0]) + 1))]
        return by_ticker(read_body(file, content, TICKER_LINES, ",", names), *levels)
    header_line, separator = find_header(lines, named)
    # The whole line: a header of thousands of columns is longer than what was looked at.
    found = fields_of(content.split(b"\n", header_line)[header_line - 1].decode("utf-8", errors="replace"), separator)
    if is_headless(found) and set(found).isdisjoint(named):
        if not are_klines([fields_of(line, separator) for line in lines[header_line - 1 :] if line.strip()]):
            raise DataError(f"{file}: {about_headless(lines[header_line - 1])}.")
        table = read_body(file, content, header_line - 1, separator, KLINES)
        return replace(table, read_as="there is no header line; the twelve columns are read as Binance's klines")
    if content.split(b"\n", header_line - 1)[-1].startswith(PACKED):  # Polars would unpack it, however large it grows
        raise DataError(f"{file}: this is a packed file, not text. Unpack it, or call it .csv.gz if it is gzip.")
    check_columns(file, len(found))
    return read_body(file, content, header_line, separator, unique_names(found))


def read_body(file: Path, content: bytes, header_line: int, separator: str, names: Sequence[str]) -> Table:
    """Return the lines below the header as a table with these columns. header_line: 0 where there is none."""
    if not names:
        raise DataError(f"{file}: line {header_line} is no header that can be read. Check that it is a text file.")
    # Polars takes the width of the table from the first row: one is put there that has every column.
    full_row = separator.join("-" * len(names)).encode() + b"\n"
    from_header = full_row + b"".join(content.split(b"\n", header_line)[header_line:])
    try:
        frame = pl.read_csv(
            io.BytesIO(from_header),
            has_header=False,
            schema=dict.fromkeys(names, pl.String),
            separator=separator,
            encoding="utf8-lossy",
        ).slice(1)
    except pl.exceptions.PolarsError as error:
        reason = long_line(from_header, header_line, separator, len(names)) or str(error)
        raise DataError(f"{file}: {reason}") from error
    row = np.arange(len(frame)) + header_line + 1
    blank = frame.select(pl.all_horizontal(pl.all().is_null() | (pl.all().str.strip_chars() == ""))).to_series()
    if blank.any():
        frame, row = frame.filter(~blank), row[~blank.to_numpy()]
    return Table(str(file), frame, row, separator, stem_of(file))


def by_ticker(table: Table, prices: Sequence[str], tickers: Sequence[str]) -> Table:
    """Return a table with a column for the symbol, of one in which each ticker has columns of its own.

    prices, tickers: of every column but the first, which is the time. Where there are several tickers, a row in which
    one has no values is no row of it.
    """
    time, *columns = table.frame.columns
    frames, rows = [], []
    for ticker in dict.fromkeys(tickers):
        own = [number for number, name in enumerate(tickers) if name == ticker]
        labels = unique_names([prices[number] for number in own])
        chosen = {columns[number]: label for number, label in zip(own, labels, strict=True)}
        frame = table.frame.select(time, *chosen).rename(chosen).with_columns(pl.lit(ticker).alias("Ticker"))
        values = pl.col(labels)
        filled = frame.select(~pl.all_horizontal(values.is_null() | (values.str.strip_chars() == ""))).to_series()
        kept = filled | (len(set(tickers)) == 1)
        frames.append(frame.filter(kept))
        rows.append(table.row[kept.to_numpy()])
    return replace(table, frame=pl.concat(frames, how="diagonal"), row=np.concatenate(rows))


def file_bytes(file: Path) -> bytes:
    """Return the file unpacked and in UTF-8 without a byte order mark."""
    try:
        content = unpacked(file) if file.name.lower().endswith(".gz") else file.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{file}: not a complete gzip file ({error}). Export or download it again.") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}). Check its permissions.") from error
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):  # MetaTrader writes UTF-16
        content = content.decode("utf-16", errors="replace").encode()
    content = content.removeprefix(b"\xef\xbb\xbf")
    return content if b"\n" in content else content.replace(b"\r", b"\n")


def unpacked(file: Path) -> bytes:
    """Return the content of a gzip file; one that grows beyond all prices is refused on the way."""
    parts, size = [], 0
    with file.open("rb") as packed, gzip.GzipFile(fileobj=packed) as stream:
        while part := stream.read(1 << 20):
            parts.append(part)
            size += len(part)
            check_growth(file, size, packed.tell())
    return b"".join(parts)


def check_growth(file: Path, size: int, packed: int) -> None:
    """Refuse a file that takes far more room in memory than on the disk. size, packed: bytes."""
    if size > max(ALWAYS_FITS, MOST_GROWTH * packed):
        raise DataError(
            f"{file}: it grows more than {MOST_GROWTH}-fold when it is unpacked, to {size / 1e6:,.0f} MB or more; "
            "price files do not. If it is what it should be, unpack it yourself and read that."
        )


def check_columns(file: Path, count: int) -> None:
    """Refuse a table with more columns than any of prices has."""
    if count > MOST_COLUMNS:
        raise DataError(f"{file}: it has {count:,} columns, and prices have {MOST_COLUMNS:,} at most. Check the file.")


def first_lines(content: bytes) -> list[str]:
    """Return the lines among which a header is looked for."""
    lines = content[:PREAMBLE_BYTES].decode("utf-8", errors="replace").split("\n")[:PREAMBLE_LINES]
    return [line.strip("\r") for line in lines]


def find_header(lines: Sequence[str], named: Collection[str] = ()) -> tuple[int, str]:
    """Return the header's line, counted from 1, and the separator.

    The header is the first line that names at least two of the four prices, or all columns that the caller named. Lines
    above it are a preamble, such as the address in the first line of CryptoDataDownload's files. Where no line does, it
    is the first that names a time and one price, and else the first one that is not blank.
    """
    wanted = {spelling_key(name) for name in named}
    for least in (2, 1):
        for number, line in enumerate(lines, start=1):
            scores = []
            for mark in SEPARATORS:
                fields = fields_of(line, mark)
                keys = {spelling_key(name) for name in fields}
                timed = least == 2 or not keys.isdisjoint(TIME_SPELLINGS)
                scores.append(4 if wanted and wanted <= keys else count_price_names(fields) if timed else 0)
            if max(scores) >= least:
                return number, SEPARATORS[scores.index(max(scores))]
    number = next((number for number, line in enumerate(lines, start=1) if line.strip()), 1)
    counts = [lines[number - 1].count(mark) for mark in SEPARATORS]
    return number, SEPARATORS[counts.index(max(counts))]


def fields_of(line: str, separator: str) -> list[str]:
    """Return the fields of one line; none where it is no line of a table."""
    try:
        return next(csv.reader([line.strip("\r")], delimiter=separator), [])
    except csv.Error:
        return []


def unique_names(names: Sequence[str]) -> list[str]:
    """Return the header's names, with blank ones and repetitions made distinct."""
    unique: list[str] = []
    for position, name in enumerate(names):
        plain = name.strip() or ("unnamed" if position == 0 else f"unnamed_{position}")
        label, number = plain, 2
        while label in unique:
            label, number = f"{plain}_{number}", number + 1
        unique.append(label)
    return unique


def long_line(from_header: bytes, header_line: int, separator: str, width: int) -> str:
    """Return a message on the first line with more fields than the header, or ''."""
    reader = csv.reader(io.StringIO(from_header.decode("utf-8", errors="replace")), delimiter=separator)
    with contextlib.suppress(csv.Error):
        for fields in reader:
            if len(fields) > width:
                return (
                    f"line {header_line + reader.line_num - 1} has {len(fields)} fields under a header of {width}. "
                    f"Repair the line; a decimal comma needs semicolons between the fields."
                )
    return ""
