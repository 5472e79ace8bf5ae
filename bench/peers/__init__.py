"""Other libraries' turns beside ours: `python -m bench.peers` (docs/performance.md)."""
