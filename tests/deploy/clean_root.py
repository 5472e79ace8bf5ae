"""A root of its own for a command, in namespaces of Linux: this machine's programs, read-only, and else nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

IS_ROOT = os.geteuid() == 0
_UNSHARE = ("unshare", *(() if IS_ROOT else ("--map-root-user",)), "--mount", "--pid", "--fork", "--kill-child")
_ETC = (
    *("alternatives", "group", "hosts", "ld.so.cache", "login.defs", "nsswitch.conf", "passwd", "resolv.conf"),
    *("ssl/certs", "ssl/openssl.cnf"),  # `ssl/private` is for root alone
)
_PROGRAMS = ("/usr", sys.base_prefix)
_ENTER = """
mount --bind "$ROOT" "$ROOT"
cd "$ROOT"
mkdir -p dev etc/ssl mnt proc root tmp
chmod 1777 tmp
for name in bin sbin lib lib32 lib64; do [ ! -L "/$name" ] || ln -sfn "$(readlink "/$name")" "$name"; done
for name in $ETC; do [ ! -e "/etc/$name" ] || cp -a --no-preserve=ownership "/etc/$name" "etc/$name"; done
for folder in $READ $WRITE; do mkdir -p ".$folder"; mount --bind "$folder" ".$folder"; done
for folder in $READ; do mount -o remount,bind,ro ".$folder"; done
mount --rbind /dev dev
mount -t proc proc proc
pivot_root . mnt
cd /
umount -l /mnt
exec sh -euc "$COMMAND"
"""


@cache
def refusal() -> str | None:
    """Why there is no clean root to be had here; None where there is."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return "namespaces of Linux and unshare are needed"
    done = subprocess.run([*_UNSHARE, "--mount-proc", "true"], capture_output=True, text=True, check=False)
    return f"the kernel allows no namespaces: {done.stderr.strip()}" if done.returncode else None


def run_in(
    root: Path,
    command: str,
    environment: Mapping[str, str],
    *,
    readable: Sequence[str] = (),
    writable: Sequence[str] = (),
) -> None:
    """Runs a command of the shell with the folder `root` as its `/`, where the other folders have their own names."""
    variables = {
        "ROOT": str(root),
        "ETC": " ".join(_ETC),
        "READ": " ".join((*_PROGRAMS, *readable)),
        "WRITE": " ".join(writable),
        "COMMAND": command,
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
    }
    done = subprocess.run(
        [*_UNSHARE, "sh", "-euc", _ENTER],
        env=variables | dict(environment),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
