"""Runs: rows sorted in memory, a part at a time, and merged from disk. An external merge sort on Arrow's columns."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.errors import SettingsError
from tidelock.model import Rejected
from tidelock.sources.files.rows import FileRow

_SCHEMA = pa.schema([("time", pa.int64()), ("number", pa.int64()), ("text", pa.binary()), ("refused", pa.bool_())])
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
# A row's numbers, beside its text.
_ROW_BYTES = 24
# This many runs are merged at a time: more are merged into one first.
_RUNS_MAX = 32
# Python's own objects of rows that wait to become a block are several times as large: these stay few.
_WAITING_ROWS = 4_096
_WAITING_BYTES = 2 * 2**20
_ROWS_GIVEN = 1_024
_rejected = msgspec.json.Decoder(Rejected).decode


class SortedRuns:
    """Takes rows in the order of a file and gives them in order of time, those of one time as they came.

    A part of the memory is for the rows that are collected, the rest for the copies that sorting makes of them; merging
    has a block of each run, and the same copies. What does not fit lies in files without a name: however the process
    ends, nothing of them stays.
    """

    def __init__(self, memory_bytes: int, directory: Path | None) -> None:
        self._directory = directory
        self._run_bytes = max(memory_bytes // 4, 1)
        self._block_bytes = max(memory_bytes // (4 * _RUNS_MAX), 1)
        self._waiting: list[tuple[int, int, bytes, bool]] = []
        self._waiting_bytes = 0
        self._blocks: list[pa.RecordBatch] = []
        self._blocks_bytes = 0
        self._files: list[IO[bytes]] = []

    def add(self, time: int, row: FileRow) -> None:
        text = row.text
        refused = isinstance(text, Rejected)
        encoded = msgspec.json.encode(text) if isinstance(text, Rejected) else text
        self._waiting.append((time, row.number, encoded, refused))
        self._waiting_bytes += len(encoded)
        if len(self._waiting) == _WAITING_ROWS or self._waiting_bytes >= _WAITING_BYTES:
            self._collect()
            if self._blocks_bytes >= self._run_bytes:
                self._spill()

    def merged(self, first: Iterator[tuple[int, FileRow]]) -> Iterator[FileRow]:
        """All rows; `first` are some in order that came before these. Can be asked for once."""
        self._collect()
        runs = [_blocks(first), *map(self._read, self._files), self._sorted()]
        for block in _merge(runs):
            columns = (block["number"].to_pylist(), block["text"].to_pylist(), block["refused"].to_pylist())
            for number, text, refused in zip(*columns, strict=True):
                yield FileRow(number, _rejected(text) if refused else text)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _collect(self) -> None:
        """Turn the rows that wait into a block, which takes no more than their bytes."""
        if self._waiting:
            block = _block(self._waiting)
            self._blocks.append(block)
            self._blocks_bytes += block.nbytes
            self._waiting, self._waiting_bytes = [], 0

    def _sorted(self) -> Iterator[pa.RecordBatch]:
        """What is collected, as a run in memory."""
        if self._blocks:
            blocks, self._blocks, self._blocks_bytes = self._blocks, [], 0
            yield from self._cut(_by_time(blocks))

    def _spill(self) -> None:
        self._files.append(self._written(self._sorted()))
        # What sorting took is wanted by nobody now.
        pa.default_memory_pool().release_unused()
        if len(self._files) == _RUNS_MAX:
            several, self._files = self._files, []
            self._files.append(self._written(_merge([self._read(file) for file in several])))
            for file in several:
                file.close()

    def _written(self, blocks: Iterator[pa.RecordBatch]) -> IO[bytes]:
        with self._disk_errors():
            file: IO[bytes] = tempfile.TemporaryFile(prefix="tidelock-sort-", dir=self._directory)  # noqa: SIM115
            try:
                with pa.ipc.new_stream(file, _SCHEMA, options=_OPTIONS) as writer:
                    for block in blocks:
                        for part in self._cut(block):
                            writer.write_batch(part)
            except BaseException:
                file.close()
                raise
            return file

    def _read(self, file: IO[bytes]) -> Iterator[pa.RecordBatch]:
        file.seek(0)
        with self._disk_errors(), pa.ipc.open_stream(file) as reader:
            yield from reader

    def _cut(self, block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The same rows in blocks of limited size."""
        ends = np.cumsum(pc.binary_length(block["text"]).to_numpy(zero_copy_only=False) + _ROW_BYTES, dtype=np.int64)
        start = 0
        while start < block.num_rows:
            done = int(ends[start - 1]) if start else 0
            end = max(start + 1, int(np.searchsorted(ends, done + self._block_bytes, side="right")))
            yield block.slice(start, end - start)
            start = end

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            where = self._directory or tempfile.gettempdir()
            why = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise SettingsError(
                f"the file cannot be sorted in {where}: {why}; free some space there, choose another directory with "
                "import_sort_directory, or sort the file yourself and import it with --as-is"
            ) from None


def _block(rows: Sequence[tuple[int, int, bytes, bool]]) -> pa.RecordBatch:
    columns = zip(zip(*rows, strict=True), _SCHEMA, strict=True)
    return pa.record_batch([pa.array(values, field.type) for values, field in columns], schema=_SCHEMA)


def _blocks(rows: Iterator[tuple[int, FileRow]]) -> Iterator[pa.RecordBatch]:
    """Rows that are in order already, as blocks."""
    waiting: list[tuple[int, int, bytes, bool]] = []
    held = 0
    for time, row in rows:
        text = row.text
        encoded = msgspec.json.encode(text) if isinstance(text, Rejected) else text
        waiting.append((time, row.number, encoded, isinstance(text, Rejected)))
        held += len(encoded)
        if len(waiting) == _WAITING_ROWS or held >= _WAITING_BYTES:
            yield _block(waiting)
            waiting, held = [], 0
    if waiting:
        yield _block(waiting)


def _by_time(blocks: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One block of several, which are emptied out of the list; sorted so that rows of one time keep their order."""
    whole = pa.concat_batches(blocks) if len(blocks) > 1 else blocks[0]
    blocks.clear()
    # Of parts that are sorted this is a merge: numpy looks for runs first.
    order = np.argsort(whole["time"].to_numpy(), kind="stable")
    return whole.take(pa.array(order))


def _merge(runs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Blocks of all runs in one order. A run comes before the next where times are equal.

    Of the runs' current blocks, what ends first bounds what can be given away: nothing earlier is to come.
    """
    heads: dict[int, pa.RecordBatch] = {}
    for index, run in enumerate(runs):
        if (block := next(run, None)) is not None:
            heads[index] = block
    while heads:
        bound, bounding = min((head["time"][-1].as_py(), index) for index, head in heads.items())
        parts = []
        for index, head in list(heads.items()):
            times = head["time"].to_numpy()
            side: Literal["left", "right"] = "right" if index <= bounding else "left"
            count = int(np.searchsorted(times, bound, side=side))
            if count:
                parts.append(head.slice(0, count))
            heads[index] = head.slice(count)
        following = next(runs[bounding], None)
        if following is None:
            del heads[bounding]
        else:
            heads[bounding] = following
        yield _by_time(parts)
