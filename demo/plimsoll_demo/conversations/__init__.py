"""Conversations that ship with Plimsoll, as JSON lines of OpenAI-style messages."""
