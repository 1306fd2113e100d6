"""Sessions: the API keys of visitors, kept here and never in their browsers, which have a random name for them."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict

COOKIE = "tidelock_console"


class Sessions:
    """As many as are allowed; the one that was used least lately makes room."""

    def __init__(self, *, sessions_max: int, lifetime_s: float) -> None:
        self._sessions_max = sessions_max
        self._lifetime_s = lifetime_s
        #: token -> when it was used last, and the key
        self._keys: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def open(self, key: str) -> str:
        token = secrets.token_urlsafe(32)
        self._keys[token] = (time.monotonic(), key)
        while len(self._keys) > self._sessions_max:
            self._keys.popitem(last=False)
        return token

    def key(self, token: str | None, *, renew: bool = True) -> str | None:
        """The key of a session that is not over. `renew`: it is used by a person, not by a page that asks again."""
        used, key = self._keys.get(token or "", (0.0, ""))
        if token is None or not key:
            return None
        if used + self._lifetime_s < time.monotonic():
            del self._keys[token]
            return None
        if renew:
            self._keys[token] = (time.monotonic(), key)
            self._keys.move_to_end(token)
        return key

    def close(self, token: str | None) -> None:
        self._keys.pop(token or "", None)
