"""The console script `plimsoll`, and `python -m app`. Each worker process imports what started the first process, so
that this imports the command line only when it is run."""

from __future__ import annotations


def main() -> None:
    from app.cli import main as command_line  # noqa: PLC0415 - as above

    command_line()


if __name__ == "__main__":
    main()
