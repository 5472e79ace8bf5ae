"""Plimsoll: sessions, turns and summaries that stay inside the model's context window."""
