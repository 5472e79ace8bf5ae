"""The blocks that `test_blocks.py` does not run itself, each with where it is run, or with why it can not be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from tests.docs.fences import Block

Place: TypeAlias = tuple[str, str]
"""A page, and how a block of it begins; every block of the page where that is empty."""

_README = "tests/docs/test_readme.py"
HELD_ELSEWHERE: Mapping[str, Iterable[Place]] = {
    f"{_README}::test_make_run_prints_three_lines_and_the_one_to_copy_is_answered": (
        ("README.md", "make run"),
        ("docs/start.md", "make run"),
    ),
    f"{_README}::test_the_catalogue_of_the_first_steps_is_what_is_served": (
        ("docs/start.md", "export OPENAI_API_KEY"),
    ),
    f"{_README}::test_the_production_commands_end_in_a_service_that_wants_the_key_they_made": (
        ("docs/operations.md", "export PATH=$PWD"),
    ),
    "tests/docs/test_client_pages.py::test_every_program_of_the_clients_page_runs_and_says_what_it_is_for": (
        ("clients/python/README.md", ""),
    ),
    "tests/docs/test_client_pages.py::test_every_program_of_the_typescript_clients_page_runs_and_says_what_it_is_for": (
        ("clients/typescript/README.md", ""),
    ),
    "tests/docs/test_client_pages.py::test_the_configuration_starts_a_server_with_the_tools_of_the_table": (
        ("docs/mcp.md", ""),
    ),
    "tests/docs/test_chat_page.py::test_its_program_is_answered_out_of_the_session": (
        ("docs/chat-completions.md", "from openai"),
    ),
    "tests/docs/test_responses_page.py::test_its_program_is_answered_out_of_the_conversation": (
        ("docs/responses.md", "from openai"),
    ),
    "tests/engine/window/test_budget_doc.py::test_the_window_is_divided_as_the_document_says": (
        ("docs/budget.md", "limit "),
    ),
    "tests/engine/window/test_sharing_properties.py": (("docs/budget.md", "rest "),),
    "tests/docs/test_contract.py::test_the_windows_arithmetic_is_that_of_the_engine": (("docs/contract.md", "limit "),),
    "tests/docs/test_contract.py::test_the_tree_of_the_architecture_is_there": (
        ("docs/architecture.md", "apps/api/app/"),
    ),
    "tests/test_backup.py::test_a_service_on_a_restored_dump_of_a_busy_database_answers_the_same": (
        ("docs/operations.md", "pg_dump"),
        ("docs/operations.md", "pg_restore"),
        ("docs/operations.md", "export PATH=$(.venv"),
    ),
}
"""By the test that runs them, with what is shown of their output."""

NEVER_RUN: Mapping[Place, str] = {
    ("docs/operations.md", "kubectl create secret"): "needs a Kubernetes cluster",
    (
        "docs/operations.md",
        "for node in coordinator.internal",
    ): "needs a Citus cluster: tests/db/test_citus.py has one",
    ("docs/operations.md", "plimsoll migrate\nplimsoll distribute"): "needs a Citus cluster, likewise",
    ("docs/performance.md", "make bench"): "takes minutes, and the machine for itself",
    ("docs/fidelity.md", "make fidelity"): "wants recorded conversations of yours, and an environment of its own",
    ("docs/real-model.md", "make test-real-model"): "compiles a model server and takes minutes",
    ("docs/reliability.md", ".venv/bin/python -m torture"): "kills and freezes processes for minutes",
}
"""Commands that no test runs, one by one, and why. They are still parsed, and what they name must be there."""

PLACES = (*(place for places in HELD_ELSEWHERE.values() for place in places), *NEVER_RUN)


def is_at(block: Block, place: Place) -> bool:
    """Whether the block is the one of this place."""
    page, start = place
    return block.page == page and block.text.startswith(start)


def is_held(block: Block) -> bool:
    """Whether another test runs the block, or none can."""
    return any(is_at(block, place) for place in PLACES)


def is_never_run(block: Block) -> bool:
    """Whether no test can run the block."""
    return any(is_at(block, place) for place in NEVER_RUN)
