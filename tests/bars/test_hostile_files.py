"""Price files that were made to fill the memory, to take hours or to write on the terminal end with a sentence."""

from __future__ import annotations

import contextlib
import gzip
import io
import random
import zlib
from pathlib import Path

import polars as pl
import pytest

from velodrome.bars import read_bars
from velodrome.errors import DataError, VelodromeError

HEADER = b"time,open,high,low,close\n"
BARS = HEADER + b"".join(b"2020-01-01 00:%02d,1,1,1,1\n" % minute for minute in range(60))


def grown(times: int) -> bytes:
    """A gzip file of bars that grows about a thousandfold, to this number of mebibytes."""
    packer = zlib.compressobj(9, wbits=31)
    packed = packer.compress(BARS)
    for _ in range(times):
        packed += packer.compress(bytes(1 << 20))
    return packed + packer.flush()


def parquet(rows: int) -> bytes:
    times = pl.select(time=pl.datetime_range(pl.datetime(2020, 1, 1), pl.datetime(2020, 1, 1, 0, rows - 1), "1m"))
    file = io.BytesIO()
    times.with_columns(**dict.fromkeys(("open", "high", "low", "close"), pl.lit(1.0))).write_parquet(file)
    return file.getvalue()


def test_honest_packed_files_are_read(tmp_path):
    for name, content in {"a.csv.gz": gzip.compress(BARS), "a.parquet": parquet(60), "a.csv": BARS}.items():
        (tmp_path / name).write_bytes(content)
        assert len(read_bars(tmp_path / name)["a"]) == 60


def test_a_gzip_file_that_grows_a_thousandfold_is_refused_on_the_way(tmp_path, monkeypatch):
    (tmp_path / "bomb.csv.gz").write_bytes(grown(90))
    read, whole = 0, gzip.GzipFile.read

    def counting(self, size=-1):
        nonlocal read
        part = whole(self, size)
        read += len(part)
        return part

    monkeypatch.setattr(gzip.GzipFile, "read", counting)
    with pytest.raises(DataError, match=r"grows more than 100-fold.*unpack it yourself"):
        read_bars(tmp_path / "bomb.csv.gz")
    assert read < 70 << 20


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_packed_file_that_is_called_text_is_not_unpacked_behind_our_back(tmp_path, pack):
    """Polars would unpack it, however large it grows."""
    (tmp_path / "bars.csv").write_bytes(pack(BARS))
    (tmp_path / "twice.csv.gz").write_bytes(gzip.compress(pack(BARS)))
    for name in ("bars.csv", "twice.csv.gz"):
        with pytest.raises(DataError, match=r"packed file|no header"):
            read_bars(tmp_path / name)


def test_a_packed_stream_whose_first_line_is_a_header_is_seen_too(tmp_path):
    """What is not compressed within a stream can be read as text, so that its first line may look like a header."""
    hidden = b"\x78\x01\x01\x20\x00\xdf\xff,open,high,low,close\n" + b"0" * 40
    (tmp_path / "bars.csv").write_bytes(hidden)
    with pytest.raises(DataError, match="packed file"):
        read_bars(tmp_path / "bars.csv")


def test_a_table_of_a_hundred_million_equal_rows_is_refused_unread(tmp_path, monkeypatch):
    (tmp_path / "bomb.parquet").write_bytes(parquet(60))
    monkeypatch.setattr("velodrome.bars.files.ALWAYS_FITS", 100)
    monkeypatch.setattr("velodrome.bars.files.MOST_GROWTH", 0.01)
    monkeypatch.setattr(pl, "read_parquet", lambda file: pytest.fail("it was read"))
    with pytest.raises(DataError, match="grows more than"):
        read_bars(tmp_path / "bomb.parquet")


def test_a_hundred_thousand_columns_are_refused(tmp_path):
    (tmp_path / "wide.csv").write_bytes(b"open,high,low,close," + b"," * 100_000 + b"\n1\n")
    with pytest.raises(DataError, match="columns, and prices have"):
        read_bars(tmp_path / "wide.csv")


@pytest.mark.parametrize("name", ["bars.parquet", "bars.csv.gz", "bars.csv"])
def test_a_damaged_file_is_a_sentence(tmp_path, name):
    whole = {"bars.parquet": parquet(60), "bars.csv.gz": gzip.compress(BARS), "bars.csv": BARS}[name]
    for seed in range(40):
        draw = random.Random(seed)
        content = bytearray(whole)
        for _ in range(draw.choice((1, 3, 20))):
            content[draw.randrange(len(content))] = draw.randrange(256)
        content = content[: draw.randrange(len(content))] if seed % 4 == 0 else content
        (tmp_path / name).write_bytes(content)
        with contextlib.suppress(VelodromeError):
            read_bars(tmp_path / name)


HOSTILE = "a\x1b[31m\u202eb\x9b"
ESCAPED = r"a\x1b[31m\u202eb\u009b"


def test_control_characters_in_names_are_spelled_out(tmp_path, capsys):
    """In names of columns, of instruments and of files; a line break could fake a line of ours."""
    from velodrome import cli

    header = f"time,open,high,low,close,{HOSTILE},symbol\n"
    rows = "".join(f"2020-01-01 00:{minute:02d},1,1,1,1,5,{HOSTILE}\n" for minute in range(60))
    file = tmp_path / f"x\nvelodrome: all is well{HOSTILE}.csv"
    file.write_text(header + rows, encoding="utf-8")
    bars = read_bars(file)
    assert bars.symbols == (ESCAPED,)
    assert all(name.isprintable() for name in bars[ESCAPED].extra)
    assert cli.run(["data", "check", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    (tmp_path / "bad.csv").write_text(header + rows.replace("1,1,1,1", f"{HOSTILE},1,1,1"), encoding="utf-8")
    with pytest.raises(DataError) as refused:
        read_bars(tmp_path / "bad.csv")
    assert str(refused.value).isprintable()


def test_a_pipe_is_no_price_file(tmp_path):
    import os

    os.mkfifo(tmp_path / "bars.csv")
    for path in (tmp_path / "bars.csv", tmp_path):
        with pytest.raises(DataError):
            read_bars(Path(path))
