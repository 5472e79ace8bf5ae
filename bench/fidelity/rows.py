"""A row of the table. It is not in the command's module, which a process that was not forked cannot import."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from app.tokenizers.counters import Tokenizers
from bench.fidelity.measure import measure
from bench.fidelity.recorded import as_one_loop, read_conversations, with_long_replies
from bench.fidelity.rules import rules

ENCODING = "o200k_base"

Row = dict[str, Any]


def measure_file(run: tuple[str, Path, int, str]) -> Row:
    """The row of a rule's name, a file, an input budget in tokens, and the form in which the file is replayed."""
    name, path, budget, form = run
    warnings.simplefilter("ignore")
    estimate = Tokenizers().estimator(ENCODING)
    conversations = read_conversations(path, estimate)
    if form == "long replies":
        conversations = [with_long_replies(conversation, estimate) for conversation in conversations]
    if form == "one loop":
        conversations = [as_one_loop(conversations, estimate)]
    tally = measure(rules()[name](budget, estimate), conversations, budget, estimate)
    if form == "one loop":
        tally.turns = tally.prompts  # its figures are those of a call
    dataset = ", ".join([path.name.split(".")[0], *([form] if form else [])])
    return {"rule": name, "dataset": dataset, "input_budget": budget, **tally.figures()}
