"""Servers as the end-to-end tests have them."""

from tests.e2e.conftest import client, server, start, tenant, threaded

__all__ = ["client", "server", "start", "tenant", "threaded"]
