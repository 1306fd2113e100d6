"""The lake: Parquet files that are sorted by sequence and named by the sequences that belong in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tidelock.errors import SettingsError
from tidelock.settings.groups import LakeSettings
from tidelock.sinks.columns import NAMES, SEQUENCE, SPARK_SCHEMA
from tidelock.sinks.files import Files, LocalFiles, Piece, Span, SparkFiles, local_path, overlapping, pieces, span_of
from tidelock.sinks.source import EventSource
from tidelock.spark.runtime import Spark

_COMPRESSION = "zstd"
_FRESH, _MERGED = "fresh", "merged"


@dataclass(frozen=True, slots=True)
class _StagedFiles:
    """Staged files: by directory, which part becomes which file."""

    files: Files
    parts: dict[str, dict[int, str]]
    #: that have no event any more
    stale: Sequence[str] = ()

    def publish(self) -> None:
        for staged, parts in self.parts.items():
            self.files.publish(staged, parts)
        for name in self.stale:
            self.files.remove(name)


class LakeSink:
    """`<path>/events/*.parquet`."""

    name = "lake"
    replaces = True

    def __init__(self, spark: Spark, settings: LakeSettings) -> None:
        assert settings.path is not None
        self._spark = spark
        self._file_events = settings.file_events
        root = local_path(settings.path)
        self.files: Files = SparkFiles(spark, settings.path) if root is None else LocalFiles(root)

    def open(self) -> None:
        """Create it if it is missing. The caller holds the lease, so staged files there are leftovers."""
        self.files.make()
        self.files.sweep()

    def last(self) -> int | None:
        """Of the last file that has events; None: it is damaged."""
        for span in reversed(self._spans()):
            try:
                row = self._read(span).agg({SEQUENCE: "max"}).first()
            except (Py4JJavaError, PySparkException) as error:
                if self._spark.lost(error):
                    raise
                return None
            if row is not None and row[0] is not None:
                return int(row[0])
        return 0

    def stage(self, lo: int, hi: int, source: EventSource) -> _StagedFiles:
        """Files with the events of a range added to those they already have."""
        spans = self._spans()
        cut = list(pieces(lo, hi, spans, self._file_events, source.following))
        merged = [
            piece
            for piece in cut
            if piece.span in spans
            and (piece[1:] != (piece.span.first - 1, piece.span.last) or source.lost(piece.lo, piece.hi))
        ]
        fresh = [piece for piece in cut if piece not in merged]
        # What is merged comes first, as it does in the lake: readers see the events of a step in their order.
        parts: dict[str, dict[int, str]] = {}
        for piece in merged:
            parts |= self._merge(_aside(_MERGED), piece, source)
        return _StagedFiles(self.files, parts | self._write(_aside(_FRESH), fresh, source))

    def widened(self, lo: int, hi: int) -> tuple[int, int]:
        """A range for a repair: whole files, whatever is in them."""
        spans = self._spans()
        first = next((span.first for span in spans if span.first <= lo + 1 <= span.last), lo + 1)
        last = next((span.last for span in spans if span.first <= hi <= span.last), hi)
        return first - 1, last

    def stage_repair(self, lo: int, hi: int, source: EventSource) -> _StagedFiles:
        """Files with nothing but what the source has; those that are damaged need not be read for that."""
        spans = self._spans()
        cut = list(pieces(lo, hi, spans, self._file_events, source.following))
        filled = {piece.span for piece in cut}
        stale = [span.file for span in spans if lo < span.first <= hi and span not in filled]
        return _StagedFiles(self.files, self._write(_aside(_FRESH), cut, source), stale)

    def _spans(self) -> list[Span]:
        spans = sorted(filter(None, map(span_of, self.files.names())))
        if both := overlapping(spans):
            one, other = both
            raise SettingsError(
                f"two files of the lake hold the same sequences, {one.file} and {other.file}: remove the one that "
                "Tidelock did not write, then run `tidelock verify`",
                field="lake.path",
            )
        return spans

    def _write(self, staged: str, cut: Sequence[Piece], source: EventSource) -> dict[str, dict[int, str]]:
        """Each piece by its own task, whose number is that of the file."""
        if not cut:
            return {}
        self._save(source.read([(piece.lo, piece.hi) for piece in cut]), staged)
        return {staged: {number: piece.span.file for number, piece in enumerate(cut)}}

    def _merge(self, staged: str, piece: Piece, source: EventSource) -> dict[str, dict[int, str]]:
        """Events of the file outside the piece are kept: those above it came from a killed step.

        So are events that the ledger has lost: this may be their last copy.
        """
        outside = [f"{SEQUENCE} <= {piece.lo}", f"{SEQUENCE} > {piece.hi}"]
        outside += [f"({SEQUENCE} > {lo} AND {SEQUENCE} <= {hi})" for lo, hi in source.lost(piece.lo, piece.hi)]
        kept = self._read(piece.span).where(" OR ".join(outside))
        rows = kept.select(*NAMES).union(source.read([(piece.lo, piece.hi)]).select(*NAMES))
        self._save(rows.coalesce(1).sortWithinPartitions(SEQUENCE), staged)
        return {staged: {0: piece.span.file}}

    def _read(self, span: Span) -> DataFrame:
        return self._spark.session.read.schema(SPARK_SCHEMA).parquet(self.files.url(span.file))

    def _save(self, rows: DataFrame, staged: str) -> None:
        writer = rows.select(*NAMES).write.option("compression", _COMPRESSION)
        # An option of the writer, because others may share the session: their files are as they like.
        writer.mode("overwrite").parquet(self.files.staging(staged))


def _aside(kind: str) -> str:
    """A directory for one step only: the JVM of a killed loader may continue writing for a while."""
    return f"{kind}-{uuid4().hex}"
