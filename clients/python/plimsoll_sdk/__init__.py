"""A typed client of Plimsoll, the service that keeps LLM conversations inside the model's context window.

`Plimsoll` waits, `AsyncPlimsoll` is for event loops; both have the same methods. `errors` has the tree of what they
raise, `models` what is answered, `events` what streams tell.
"""

from plimsoll_sdk import errors, events, models
from plimsoll_sdk.async_client import AsyncPlimsoll, AsyncTurnStream
from plimsoll_sdk.call import NOT_GIVEN
from plimsoll_sdk.client import Plimsoll, TurnStream
from plimsoll_sdk.errors import ContextBudgetExceeded, PlimsollError, Problem, TurnInProgress
from plimsoll_sdk.events import (
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
