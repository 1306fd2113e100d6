"""Servers as the end-to-end tests have them."""

from tests.e2e.conftest import start, threaded

__all__ = ["start", "threaded"]
