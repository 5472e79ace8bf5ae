"""Starts one program of the embedded Postgres as a user that it accepts. Run as a script; standard library only.

    python -I -S embedded_launcher.py IDENTITY HOW PROGRAM [ARGUMENT …]

IDENTITY is `self`, `namespace:UID:GID` or `account:UID:GID` (docs/decisions/0002-embedded-postgres.md). HOW is `wait`
(become PROGRAM), `detach` (start PROGRAM in a session of its own, so that neither Ctrl-C nor a closing terminal reaches
it, and exit at once) or `probe` (exit with 0 if PROGRAM could be run from the working folder).

The exit status is 93 when the kernel does not allow the identity, or the identity can not reach PROGRAM.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

NOT_ALLOWED = 93

_CLONE_NEWUSER = 0x10000000
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_DAC_OVERRIDE = 1
_LINUX_CAPABILITY_VERSION_3 = 0x20080522


def launch(arguments: list[str]) -> None:
    """Assumes the identity, then becomes the program. Returns only from `probe` and in the parent of `detach`."""
    identity, how, program = arguments[0], arguments[1], arguments[2:]
    _assume(identity, program[0])
    if how == "probe":
        if not _reachable(program[0]):
            raise PermissionError(program[0])
        return
    if how == "detach":
        if os.fork():
            return
        os.setsid()
    os.execv(program[0], program)


def _assume(identity: str, program: str) -> None:
    if identity == "self":
        return
    kind, uid, gid = identity.split(":")
    if kind == "namespace":
        _enter_namespace(int(uid), int(gid))
    else:
        _become_account(int(uid), int(gid), program)


def _enter_namespace(uid: int, gid: int) -> None:
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    libc = _libc()
    if libc.unshare(_CLONE_NEWUSER) != 0:
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
        launch(sys.argv[1:])
    except (OSError, AttributeError) as refusal:  # a libc without `unshare` lacks the attribute
        sys.stderr.write(f"{refusal}\n")
        sys.exit(NOT_ALLOWED)
