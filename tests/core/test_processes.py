"""SIGINT and SIGTERM within the contexts of `cortext.processes`, and after them."""

import os
import signal
import threading

import pytest

from cortext.processes import handling, interruptible, interrupts, stop_event, uninterrupted


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def outside():
    """The signals that reach the handlers outside of the contexts."""
    received = []
    with handling((signal.SIGINT, signal.SIGTERM), lambda number, _: received.append(number)):
        yield received


def test_the_first_interrupt_is_noted_and_the_second_obeyed(outside):
    with interrupts() as interrupted:
        assert not interrupted.is_set()
        send(signal.SIGTERM)
        assert interrupted.is_set()
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    send(signal.SIGINT)
    assert outside == [signal.SIGINT]


def test_a_second_stop_acts_as_it_does_outside(outside):
    with stop_event() as stop:
        send(signal.SIGTERM)
        assert stop.is_set()
        assert not outside
        send(signal.SIGTERM)
        assert outside == [signal.SIGTERM]


def test_ctrl_c_is_ignored_or_raised(outside):
    with uninterrupted():
        send(signal.SIGINT)
        with interruptible(), pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        send(signal.SIGINT)
    assert not outside


def test_other_threads_leave_the_handlers_alone(outside):
    def work() -> None:
        with stop_event() as stop, interrupts() as interrupted:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            assert not stop.is_set()
            assert not interrupted.is_set()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert outside == [signal.SIGINT]
