from __future__ import annotations

from tests.db.servers import data_dir, stopped_server

__all__ = ["data_dir", "stopped_server"]
