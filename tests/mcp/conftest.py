"""The service of `tests/api`."""

from tests.api.conftest import address

__all__ = ["address"]
