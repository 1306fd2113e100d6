"""Plain files: the decompressed content of a file, and how much of it was read."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

import zstandard

from tidelock.errors import SettingsError

#: endings of compressed files
COMPRESSED = (".gz", ".zst")
_ZSTD_WINDOW_BYTES_MAX = 1 << 27


class PlainFile:
    """A file open for reading; `.gz` and `.zst` are decompressed on the way."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._raw = open_file(path)
        self._bytes = os.fstat(self._raw.fileno()).st_size
        self.stream: BinaryIO = _decompressing(self._raw, path.suffix)

    @property
    def fraction(self) -> float:
        """How much was read, in compressed bytes if it is compressed."""
        return self._raw.tell() / self._bytes if self._bytes else 1.0

    def readline(self, bytes_max: int) -> bytes:
        """The next line with its end; nothing at the end of the file. Raises SettingsError for damaged compression."""
        try:
            return self.stream.readline(bytes_max)
        except (zstandard.ZstdError, gzip.BadGzipFile, EOFError, OSError) as error:
            raise SettingsError(f"{self.path} cannot be decompressed to its end: {error}") from None

    def close(self) -> None:
        self.stream.close()
        self._raw.close()


def open_file(path: Path) -> io.BufferedReader:
    """Raises SettingsError, in words, for a file that cannot be read."""
    try:
        # Checked before opening, which on a pipe would wait for a writer.
        if path.exists() and not path.is_file():
            raise SettingsError(f"{path} is not a regular file; an import reads it twice, so copy the input to a file")
        return open(path, "rb")
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None


@contextmanager
def writing(raw: IO[bytes], suffix: str) -> Iterator[IO[bytes]]:
    """Compress what is written, by the ending of the file's name."""
    if suffix == ".gz":
        # Without name and time: the same events are the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
            yield cast(IO[bytes], packed)
    elif suffix == ".zst":
        with zstandard.ZstdCompressor().stream_writer(raw, closefd=False) as packed:
            yield cast(IO[bytes], packed)
    else:
        yield raw


def _decompressing(raw: BinaryIO, suffix: str) -> BinaryIO:
    if suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw, mode="rb"))
    if suffix == ".zst":
        reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX).stream_reader(
            raw, read_across_frames=True, closefd=False
        )
        return io.BufferedReader(cast(io.RawIOBase, reader))
    return raw
