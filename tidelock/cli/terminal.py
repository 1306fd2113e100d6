"""The terminal: what people see of a command. Results go to stdout, everything about the work to stderr.

Colours and progress bars only on a terminal: not in pipes, and never with NO_COLOR.
"""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

# Without a terminal, lines are not wrapped: their reader is a program or an editor.
_WIDTH_UNSEEN = 500
# Control characters, and those that change the direction of text.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# How often progress is logged.
_LINE_EVERY_S = 10.0


class _Console(Console):
    """Text from outside may contain control sequences that a terminal would obey: they are shown instead."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or not _COMMANDS.search(segment.text):
                yield segment
            else:
                yield Segment(_COMMANDS.sub(lambda found: ascii(found[0])[1:-1], segment.text), segment.style)


def console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    seen = stream.isatty()
    return _Console(stderr=stderr, highlight=False, soft_wrap=not seen, width=None if seen else _WIDTH_UNSEEN)


def say(text: str) -> None:
    """Print a line about the work, in Rich's markup, to stderr."""
    console(stderr=True).print(text)


def say_as_it_is(text: str) -> None:
    """Print lines that include commands to copy, unwrapped: the terminal wraps them, and copying joins them again."""
    console(stderr=True).print(text, soft_wrap=True)


def show(text: str) -> None:
    """Print a line of the result, in Rich's markup."""
    console().print(text)


def fail(message: str) -> None:
    say(f"[bold red]Error:[/] {escape(message)}")


@contextmanager
def output() -> Iterator[IO[bytes]]:
    """Stdout for raw bytes. Raises BrokenPipeError once its reader is gone."""
    stream = sys.stdout.buffer
    if not isinstance(stream, io.RawIOBase):
        yield stream
        stream.flush()
        return
    # With PYTHONUNBUFFERED it is the raw file, whose write may be partial.
    whole = io.BufferedWriter(stream)
    try:
        yield whole
        whole.flush()
    finally:
        with suppress(OSError):
            whole.detach()


def write(lines: Iterable[bytes]) -> None:
    """Lines of the result."""
    with output() as out:
        out.writelines(line + b"\n" for line in lines)


def write_json(*results: object) -> None:
    """One object a line."""
    write(msgspec.json.encode(result) for result in results)


def show_line(shown: Console, line: Text) -> None:
    """Print one of many lines of the result: cut at the terminal's width, whole in a pipe."""
    shown.print(line, no_wrap=True, overflow="ellipsis" if shown.is_terminal else "ignore", crop=False)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; cells may contain markup."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        right = name.endswith("#")
        table.add_column(name.removesuffix("#"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line; values may contain markup."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, value)
    console().print(table)


class Work:
    """Progress of long work: a bar on a terminal, an occasional line in a log."""

    def __init__(self, what: str, unit: str) -> None:
        self._what = what
        self._unit = unit
        self._started = self._told = time.monotonic()
        self._console = console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[done]}"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=1.0, done="")

    def begin(self, what: str) -> None:
        """Start another part of the work, with its own rate and bar."""
        self._what = what
        self._started = self._told = time.monotonic()
        self._bar.reset(self._task, description=what, completed=0, done="")

    def told(self, done: int, fraction: float) -> None:
        now = time.monotonic()
        rate = done / max(now - self._started, 0.001)
        text = f"{done:,} {self._unit}, {rate:,.0f}/s"
        self._bar.update(self._task, completed=fraction, done=text)
        if self._bar.disable and now - self._told >= _LINE_EVERY_S:
            self._told = now
            self._console.print(f"{self._what}: {text}, {fraction:.0%}")

    def __enter__(self) -> Work:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
