"""The session "Demo" that a service has when it starts for the first time, as a document to import.

    python -m plimsoll_demo.first_session      # writes it anew: a service of its own plays conversations/bakery.jsonl

The conversation is our own, under the licence of the project: four months in which a bakery is opened, with tools, a
date that changes, and a fact of the third turn that is needed a hundred turns later.
"""

from __future__ import annotations

import gzip
from importlib.resources import as_file, files
from pathlib import Path

import orjson

from plimsoll_demo.client import Service
from plimsoll_demo.conversations import DOCUMENT
from plimsoll_demo.driver import ReplayOptions, replay_conversation
from plimsoll_demo.own_service import own_service
from plimsoll_demo.reader import read_conversations
from plimsoll_demo.recording import RecordedConversation

METADATA = {"title": "Demo", "guide": "bakery"}
"""The inspector shows its guide of this name with the session (`apps/web/src/pages/guide.tsx`)."""
WINDOW_TOKENS = 4_096
GOAL = "Open the bakery Kornblume in Feldgasse 12."
_FOLDER = files("plimsoll_demo.conversations")


def first_conversation() -> RecordedConversation:
    """The recorded conversation that the document was made of."""
    with as_file(_FOLDER / "bakery.jsonl") as path:
        return read_conversations(path, session_per_line=False)[0]


def played(service: Service) -> bytes:
    """Plays the conversation through a service and gives the export of its session."""
    options = ReplayOptions(window_tokens=WINDOW_TOKENS, room_goal=GOAL, check_prompts=False)
    session = replay_conversation(service, first_conversation(), options, lambda _turn: None)
    service.request("PATCH", f"/v1/sessions/{session.session_id}", {"metadata": METADATA})
    return orjson.dumps(service.request("GET", f"/v1/sessions/{session.session_id}/export").body)


def main() -> None:
    """Writes the document."""
    with own_service() as url, Service(url) as service, as_file(_FOLDER) as folder:
        document = played(service)
        Path(folder, DOCUMENT).write_bytes(gzip.compress(document, mtime=0))


if __name__ == "__main__":
    main()
