"""`cortext` and `python -c` for shell scripts, without the seconds of loading the package.

`serve` loads the package once and forks a process for each call of two small programs, `cortext` and
`python`, which stand first on a script's PATH. The process gets the caller's arguments, folder,
environment, input and outputs. It runs the console script's own function, or the given Python code.
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
import traceback
import types
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
if {name!r} == "python" and sys.argv[1:2] != ["-c"]:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
call = json.dumps([[{name!r}, *sys.argv[1:]], os.getcwd(), dict(os.environ)])
socket.send_fds(server, [call.encode()], [0, 1, 2])
pid = int(server.recv(20))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
status = server.recv(20)
sys.exit(int(status) if status else "the command died")
"""
LOADED = (
    "cortext.cli.options",
    "cortext.cli.train",
    "cortext.training.torch_backend",
    "cortext.evaluation.run",
    "cortext.evaluation.report",
    "cortext_lm.ngram.build",
    "cortext.decoding.fake",
    "cortext_data.simulate",
    "cortext_live.commands.adapt",
    "cortext_tune.study",
    "duckdb",
    "pydantic",
    "rich.progress",
    "rich.table",
)
"""Modules that most commands import when they begin to work."""
SPEECH_LLM = (
    "cortext_speechllm.inference",
    "cortext_speechllm.stages",
    "cortext_speechllm.targets.build",
    "cortext_speechllm.teach",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2_audio.modeling_qwen2_audio",
)
"""Modules that the commands of the speech LLM import, too: five seconds each time."""


@contextlib.contextmanager
def serve(folder: Path, more: Sequence[str] = ()) -> Iterator[Path]:
    """Serve while the context lasts; yield the folder with the two programs.

    `more` are modules to load beside `LOADED`.
    """
    folder.mkdir()
    address = folder / "socket"
    for name in ("cortext", "python"):
        program = folder / name
        program.write_text(CLIENT.format(python=sys.executable, address=str(address), name=name))
        program.chmod(0o755)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(address))
    listening.listen()
    # A process that has loaded nothing yet: what this one holds must not be in every command.
    server = get_context("spawn").Process(target=_serve, args=(listening, [*LOADED, *more]))
    server.start()
    try:
        yield folder
    finally:
        server.kill()
        server.join()
        listening.close()


def _serve(listening: socket.socket, modules: list[str]) -> None:
    main: Any = next(
        iter(importlib.metadata.entry_points(group="console_scripts", name="cortext"))
    ).load()
    for module in modules:
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
    sys.argv = arguments
    status: Any = 1
    try:
        status = main() if arguments[0] == "cortext" else _run_code(arguments)
    except SystemExit as ended:
        status = ended.code
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        caller.send(str(status if isinstance(status, int) else int(status is not None)).encode())
        os._exit(0)


def _run_code(arguments: list[str]) -> int:
    """Run `python -c CODE` in a `__main__` of its own."""
    _, option, code, *more = arguments
    sys.argv = [option, *more]
    sys.path.insert(0, "")  # a module in the caller's folder can be imported
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    try:
        exec(compile(code, "<string>", "exec"), vars(module))
    except Exception:
        traceback.print_exc()
        return 1
    return 0
