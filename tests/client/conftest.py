"""The service and the client of `tests/api`."""

from tests.api.conftest import address, client

__all__ = ["address", "client"]
