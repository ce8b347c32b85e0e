"""`cortext` for shell scripts, without the seconds of loading it for each command.

`serve` loads the package once and forks a process for each call of a small program, `cortext`, which
stands first on a script's PATH. The process gets the caller's arguments, folder, environment, input and
outputs, and runs the console script's own function.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

MODULES = (
    "cortext.training",
    "cortext.evaluation",
    "cortext.decoding",
    "cortext.cli.options",
    "rich.progress",
    "rich.table",
)
"""Modules that most commands import."""
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
call = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)])
socket.send_fds(server, [call.encode()], [0, 1, 2])
pid = int(server.recv(20))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
status = server.recv(20)
sys.exit(int(status) if status else "the command died")
"""


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[Path]:
    """Serve while the context lasts; yield the folder with the program `cortext`."""
    folder.mkdir()
    address = folder / "socket"
    program = folder / "cortext"
    program.write_text(CLIENT.format(python=sys.executable, address=str(address)))
    program.chmod(0o755)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(address))
    listening.listen()
    # A process that has loaded nothing yet: what this one holds must not be in every command.
    server = get_context("spawn").Process(target=_serve, args=(listening,))
    server.start()
    try:
        yield folder
    finally:
        server.kill()
        server.join()
        listening.close()


def _serve(listening: socket.socket) -> None:
    main: Any = next(
        iter(importlib.metadata.entry_points(group="console_scripts", name="cortext"))
    ).load()
    for module in (
        "cortext.cli.train",
        "rich.progress",
        "rich.table",
        "cortext.training",
        "cortext.evaluation",
        "cortext.decoding",
    ):
        importlib.import_module(module)
    gc.freeze()  # a search of what is loaded would copy its memory into every command
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    while True:
        caller, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _answer(caller, main)
        caller.close()


def _answer(caller: socket.socket, main: Any) -> None:
    """Run one command and tell the caller its exit status. Does not return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    call, descriptors, _, _ = socket.recv_fds(caller, 1 << 20, 3)
    caller.send(str(os.getpid()).encode())
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    arguments, folder, environment = json.loads(call)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["cortext", *arguments]
    status: Any = 1
    try:
        status = main()
    except SystemExit as ended:
        status = ended.code
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        caller.send(str(status if isinstance(status, int) else int(status is not None)).encode())
        os._exit(0)
