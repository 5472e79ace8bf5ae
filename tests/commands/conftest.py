"""The service over HTTP, as the API's own tests have it."""

from tests.api.conftest import address, client

__all__ = ["address", "client"]
