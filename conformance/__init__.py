"""Unmodified clients of other projects, run against the service: what `docs/clients.md` states is made here."""
