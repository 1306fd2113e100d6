"""Servers in this process, as the tests of users' paths have them."""

from tests.e2e.conftest import start

__all__ = ["start"]
