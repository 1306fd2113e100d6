"""The wire protocol of Postgres, as far as a stand-in for a server of that family needs it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence

_SSL_REQUEST, _GSS_REQUEST, _CANCEL_REQUEST = 80877103, 80877104, 80877102


class Wire:
    """The server's side of one connection, with a password in clear and the simple protocol."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        users: Mapping[str, str],
        cancel: Callable[[int], None],
    ) -> None:
        self.reader, self.writer = reader, writer
        self.number = id(self) & 0x7FFFFFFF
        self._users = users
        self._cancel = cancel

    async def begin(self) -> bool:
        """Whether it is let in."""
        while True:
            size, code = struct.unpack("!ii", await self.reader.readexactly(8))
            body = await self.reader.readexactly(size - 8)
            if code in (_SSL_REQUEST, _GSS_REQUEST):
                self.writer.write(b"N")
                continue
            if code == _CANCEL_REQUEST:
                self._cancel(struct.unpack("!ii", body)[0])
                return False
            break
        words = body.rstrip(b"\0").decode().split("\0")
        user = dict(zip(words[::2], words[1::2], strict=True))["user"]
        self.send(b"R", struct.pack("!i", 3))
        _, password = await self.receive()
        if self._users.get(user) != password.rstrip(b"\0").decode():
            self.fail("28P01", "invalid password", severity="FATAL")
            await self.writer.drain()
            return False
        self.send(b"R", struct.pack("!i", 0))
        for name, value in {"server_version": "9.5.0", "client_encoding": "UTF8", "server_encoding": "UTF8"}.items():
            self.send(b"S", f"{name}\0{value}\0".encode())
        self.send(b"K", struct.pack("!ii", self.number, 0))
        self.ready()
        return True

    def rows(self, names: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
        described = b"".join(name.encode() + b"\0" + struct.pack("!ihihih", 0, 0, 25, -1, -1, 0) for name in names)
        self.send(b"T", struct.pack("!h", len(names)) + described)
        for row in rows:
            values = [value.encode() for value in row]
            self.send(
                b"D", struct.pack("!h", len(row)) + b"".join(struct.pack("!i", len(value)) + value for value in values)
            )
        self.send(b"C", b"SHOW\0")

    async def receive(self) -> tuple[bytes, bytes]:
        kind, size = struct.unpack("!ci", await self.reader.readexactly(5))
        return kind, await self.reader.readexactly(size - 4)

    def send(self, kind: bytes, body: bytes = b"") -> None:
        self.writer.write(kind + struct.pack("!i", len(body) + 4) + body)

    def fail(self, code: str, message: str, severity: str = "ERROR") -> None:
        self.send(b"E", f"S{severity}\0V{severity}\0C{code}\0M{message}\0\0".encode())

    def ready(self) -> None:
        self.send(b"Z", b"I")
