"""Speak many texts in their order, in this process or in several."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing

import numpy as np

from cortext.errors import CortextError, RunError, TextError, first_line
from cortext.processes import end_with_parent, interrupts_held
from cortext_live.voices.voice import Voice

_AHEAD = 32
"""Texts given to each process ahead: about a minute and a half of speech, 6 MB."""


def say(voice: Voice, text: str) -> np.ndarray:
    """Speak a text. Raises TextError where the voice fails, or its wave is silent."""
    try:
        wave = voice.speak(text)
    except CortextError:
        raise
    except Exception as error:  # a voice's library raises errors of any class
        raise TextError(
            f"{voice.name} cannot speak {text!r} ({first_line(error)})", fix="leave it out"
        ) from error
    if not np.isfinite(wave).all() or not wave.any():
        raise TextError(f"nothing is heard when {voice.name} speaks {text!r}", fix="leave it out")
    return wave


def say_all(
    voice: Voice, texts: Iterable[str], workers: int = 0
) -> Generator[np.ndarray, None, None]:
    """Yield the waves of texts in their order.

    Args:
        voice: The voice.
        texts: The texts.
        workers: Processes that speak ahead; 0 speaks in this process.

    Raises:
        TextError: As `say` does.
        RunError: Where a process was killed.
    """
    if not workers:
        yield from (say(voice, text) for text in texts)
        return
    # Fresh processes, since forking one that holds threads or a GPU may fail.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(voice,))
    try:
        with closing(_in_order(pool, texts, workers * _AHEAD)) as waves:
            yield from waves
    except BrokenProcessPool:
        fix = "the same command goes on with what is left; fewer --workers need less memory"
        raise RunError(
            "a process that speaks was killed (out of memory?)", where=voice.name, fix=fix
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_order(
    pool: ProcessPoolExecutor, texts: Iterable[str], ahead: int
) -> Generator[np.ndarray, None, None]:
    pending: deque[Future[np.ndarray]] = deque()
    for text in texts:
        with interrupts_held():  # it may start a process, which must ignore a Ctrl-C
            pending.append(pool.submit(_say, text))
        if len(pending) >= ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


_voice: Voice


def _begin(voice: Voice) -> None:
    """Prepare a process for speaking."""
    global _voice
    end_with_parent()
    # A scheduler's SIGTERM goes to all processes. It must not end this one while it writes a
    # result: the process that reads the rest of it would wait for ever.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _voice = voice


def _say(text: str) -> np.ndarray:
    return say(_voice, text)
