"""The user as which the embedded Postgres runs: the owner of its folder, but never root
(docs/decisions/0002-embedded-postgres.md)."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Literal

from app.db import embedded_launcher
from app.domain.frozen import frozen

_ACCOUNTS = ("postgres", "nobody", "daemon")


class NoIdentityError(Exception):
    """There is no user as which the server could run; the message says what to do."""


@frozen
class Identity:
    """`uid` and `gid` are those that the server itself sees."""

    kind: Literal["self", "namespace", "account"]
    uid: int
    gid: int

    def command(self, how: Literal["wait", "detach", "probe"], program: Path, arguments: list[str]) -> list[str]:
        """The command line that runs the program under this identity."""
        name = "self" if self.kind == "self" else f"{self.kind}:{self.uid}:{self.gid}"
        return [sys.executable, "-I", "-S", embedded_launcher.__file__, name, how, str(program), *arguments]

    def own(self, folder: Path) -> None:
        """Makes the account the owner of the folder, if the server runs as another account than the caller."""
        if self.kind == "account":
            os.chown(folder, self.uid, self.gid)

    def works(self, folder: Path, program: Path) -> bool:
        """Whether the kernel allows this identity, and the program can be reached from the folder with it."""
        probe = subprocess.run(
            self.command("probe", program, []), cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        return probe.returncode == 0


def identity_for(folder: Path, program: Path) -> Identity:
    """The identity for the server in the folder, which is created if it is missing. Raises `NoIdentityError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = folder.stat()
    if owner.st_uid != os.geteuid():
        if os.geteuid() != 0:
            raise NoIdentityError(
                f"{folder} belongs to {_name(owner.st_uid)}: start as that user, or choose another PLIMSOLL_DATA_DIR."
            )
        return _usable(Identity("account", owner.st_uid, owner.st_gid), folder, program)
    if os.geteuid() != 0 and _name(os.geteuid()) != str(os.geteuid()):
        return Identity("self", os.geteuid(), os.getegid())
    account = _unprivileged_account()
    namespace = Identity("namespace", account.pw_uid, account.pw_gid)
    if namespace.works(folder, program):
        return namespace
    if os.geteuid() != 0:
        raise NoIdentityError(
            f"User {os.geteuid()} has no name in /etc/passwd, which initdb needs: give it one, or set DATABASE_URL."
        )
    return _usable(Identity("account", account.pw_uid, account.pw_gid), folder, program)


def _usable(identity: Identity, folder: Path, program: Path) -> Identity:
    if not identity.works(folder, program):
        raise NoIdentityError(
            "Postgres does not run as root, and here root may not become anyone else: start as an ordinary user, "
            "or set DATABASE_URL."
        )
    identity.own(folder)
    return identity


def _unprivileged_account() -> pwd.struct_passwd:
    known = {entry.pw_name: entry for entry in pwd.getpwall() if entry.pw_uid != 0}
    named = [known[name] for name in _ACCOUNTS if name in known]
    for entry in [*named, *known.values()]:
        return entry
    raise NoIdentityError("Postgres does not run as root, and there is no other account: set DATABASE_URL.")


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
