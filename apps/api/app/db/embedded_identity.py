"""The user as which the embedded Postgres runs: the owner of its folder, but never root
(docs/decisions/0002-embedded-postgres.md). As a script, this starts one program of it as that user:

    python -I -S embedded_identity.py KIND UID GID HOW PROGRAM [ARGUMENT …]

HOW is `wait` (become PROGRAM), `detach` (start PROGRAM in a session of its own, so that neither Ctrl-C nor a closing
terminal reaches it, and exit at once) or `probe` (exit with 0 if PROGRAM could be run from the working folder). The
exit status is 93 when the kernel does not allow the identity, or the identity can not reach PROGRAM. A script without
site-packages: it imports the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Literal, NamedTuple

NOT_ALLOWED = 93

_ACCOUNTS = ("postgres", "nobody", "daemon")
_CLONE_NEWUSER = 0x10000000
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_DAC_OVERRIDE = 1
_LINUX_CAPABILITY_VERSION_3 = 0x20080522


class NoIdentityError(Exception):
    """There is no user as which the server could run; the message says what to do."""


class Identity(NamedTuple):
    """`uid` and `gid` are those that the server itself sees."""

    kind: Literal["self", "namespace", "account"]
    uid: int
    gid: int

    def command(self, how: Literal["wait", "detach", "probe"], program: Path, arguments: list[str]) -> list[str]:
        """The command line that runs the program under this identity."""
        return [sys.executable, "-I", "-S", __file__, *map(str, self), how, str(program), *arguments]

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
    for entry in [*(known[name] for name in _ACCOUNTS if name in known), *known.values()]:
        return entry
    raise NoIdentityError("Postgres does not run as root, and there is no other account: set DATABASE_URL.")


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _launch(kind: str, uid: str, gid: str, how: str, *program: str) -> None:
    """Assumes the identity, then becomes the program. Returns only from `probe` and in the parent of `detach`."""
    if kind == "namespace":
        _enter_namespace(int(uid), int(gid))
    elif kind == "account":
        _become_account(int(uid), int(gid), program[0])
    if how == "probe":
        if not _reachable(program[0]):
            raise PermissionError(program[0])
        return
    if how == "detach":
        if os.fork():
            return
        os.setsid()
    os.execv(program[0], program)


def _enter_namespace(uid: int, gid: int) -> None:
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    if _libc().unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")  # the kernel requires it before an unprivileged group map
    Path("/proc/self/uid_map").write_text(f"{uid} {outer_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {outer_gid} 1")


def _become_account(uid: int, gid: int, program: str) -> None:
    linux = sys.platform.startswith("linux")
    if linux:
        _libc().prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    if linux and not _reachable(program):
        _keep_dac_override()


def _reachable(program: str) -> bool:
    """Whether this process can now access the program, and the working folder by its whole path."""
    try:
        with Path(program).open("rb"):
            pass
        return Path.cwd().samefile(".") and os.access(program, os.X_OK)
    except OSError:
        return False


def _keep_dac_override() -> None:
    """Moves the one capability into the ambient set, the only one that outlives `exec` under an ordinary user id."""
    libc = _libc()
    header = (ctypes.c_uint32 * 2)(_LINUX_CAPABILITY_VERSION_3, 0)
    bit = 1 << _CAP_DAC_OVERRIDE
    sets = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)  # effective, permitted, inheritable; then their upper halves
    if libc.capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    if libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    try:
        _launch(*sys.argv[1:])
    except (OSError, AttributeError) as refusal:  # a libc without `unshare` lacks the attribute
        sys.stderr.write(f"{refusal}\n")
        sys.exit(NOT_ALLOWED)
