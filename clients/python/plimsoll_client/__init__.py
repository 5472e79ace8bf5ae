"""A typed client of Plimsoll, the service that keeps LLM conversations inside the model's context window.

`Plimsoll` waits, `AsyncPlimsoll` is for event loops; both have the same methods. `errors` has the tree of what they
raise, `models` what is answered, `events` what streams tell.
"""

from plimsoll_client import errors, events, models
from plimsoll_client.async_client import AsyncPlimsoll, AsyncTurnStream
from plimsoll_client.call import NOT_GIVEN
from plimsoll_client.client import Plimsoll, TurnStream
from plimsoll_client.errors import ContextBudgetExceeded, PlimsollError, Problem, TurnInProgress
from plimsoll_client.events import (
    ContextAssembled,
    OutputDelta,
    TurnAwaitingTools,
    TurnCompleted,
    TurnCreated,
    TurnEvent,
    TurnFailed,
)

__all__ = [
    "NOT_GIVEN",
    "AsyncPlimsoll",
    "AsyncTurnStream",
    "ContextAssembled",
    "ContextBudgetExceeded",
    "OutputDelta",
    "Plimsoll",
    "PlimsollError",
    "Problem",
    "TurnAwaitingTools",
    "TurnCompleted",
    "TurnCreated",
    "TurnEvent",
    "TurnFailed",
    "TurnInProgress",
    "TurnStream",
    "errors",
    "events",
    "models",
]
