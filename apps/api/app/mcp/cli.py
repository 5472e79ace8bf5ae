"""The command: a server on standard input and output, for the host that starts it."""

from __future__ import annotations

from typing import Annotated

import typer

from app.own_database import CommandRefused


def mcp_command(
    url: Annotated[
        str, typer.Option(envvar="PLIMSOLL_URL", help="Where the service listens.", show_envvar=True)
    ] = "http://127.0.0.1:8000",
    write: Annotated[bool, typer.Option("--write", help="Also offer tools that change pins.")] = False,
) -> None:
    """Offers sessions of a running service to a host of the Model Context Protocol, over standard input and output.

    The API key is PLIMSOLL_API_KEY of the environment: the tools see what its tenant sees.
    """
    try:
        from app.mcp.server import make_server  # noqa: PLC0415 - an extra, which other commands do without
    except ModuleNotFoundError as error:
        if error.name not in {"mcp", "plimsoll_sdk"}:
            raise
        raise CommandRefused(
            f"the package {error.name} is missing; it comes with the extra mcp of plimsoll-server"
        ) from error
    try:
        server = make_server(url, write=write)
    except ValueError as error:
        raise CommandRefused(str(error)) from error
    server.run("stdio")
