"""What a plain turn costs: the service against a bare hand-written handler, both in one run on one machine.

`python -m bench` (or `make bench`); `docs/performance.md` says what the figures mean.
"""
