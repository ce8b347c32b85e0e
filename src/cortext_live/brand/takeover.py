"""The start of a BRAND node: it continues where the node before it ended.

A node writes a result first and its position afterwards. So a result may exist that the position
does not count, and never the reverse: no utterance is reported twice, and none is lost.
"""

from __future__ import annotations

from cortext_live.brand.entries import NodeStates, index_of
from cortext_live.brand.outputs import NodeOutputs
from cortext_live.brand.parameters import NodeConfig
from cortext_live.brand.position import Missed, NodePosition, catch_up
from cortext_live.core.redis_link import RedisLink


def take_over(
    link: RedisLink,
    key: str,
    parameters: NodeConfig,
    states: NodeStates,
    outputs: NodeOutputs,
    bin_ms: float,
) -> tuple[NodePosition, str]:
    """Return the position to continue from; report entries missed since the last node.

    Args:
        link: The connection.
        key: Key of the position.
        parameters: The node's parameters.
        states: The node's states, for warnings.
        outputs: Results of missed trials are written there.
        bin_ms: Length of a bin.

    Returns:
        The position, and the problem of an utterance that may have begun meanwhile; empty for none.
    """
    before, aside = NodePosition.take_over(link, key, parameters)
    if aside:
        states.write("NODE_WARNING", f"{key} cannot be read and was renamed to {aside}")
    position = before or NodePosition()
    known = before is not None and not before.clean
    missed = catch_up(link, parameters, position, known, bin_ms)
    n_uncounted = _count_uncounted(outputs, parameters, position) if before or aside else 0
    if known and position.running and not n_uncounted:
        _write_interrupted(outputs, position, missed)
    position.utterance += n_uncounted
    position.running = position.clean = False
    # The first of these trials are the ones that have the uncounted results.
    for mark in missed.trials[n_uncounted if known else 0 :]:
        away = (
            f"the node was away when it began; {missed}"
            if known
            else "it began before the node was ready"
        )
        position.utterance += 1
        outputs.write_missed(position, mark.trial, f"missed: {away}")
    if not (known and missed):
        return position, ""
    trials = f", {len(missed.trials)} trials in them" if missed.trials else ""
    states.write("NODE_WARNING", f"while the node was away {missed}{trials}")
    # Without a control stream an utterance may have begun in the entries that nobody read.
    late = "" if parameters.control_stream else f"its beginning may be missing: {missed} before it"
    return position, late


def _count_uncounted(outputs: NodeOutputs, parameters: NodeConfig, position: NodePosition) -> int:
    """Return the number of results that the position does not count; continue its step numbers."""
    i_out = index_of(outputs.newest_step().get(parameters.index_field.encode()))
    if i_out is not None:
        position.i_out = max(position.i_out, i_out + 1)
    number = outputs.newest_result().get(b"utterance", b"")
    # A number that no position could hold is not that of a node.
    if not number.isdigit() or len(number) >= 19:
        return 0
    return max(int(number) - position.utterance, 0)


def _write_interrupted(outputs: NodeOutputs, position: NodePosition, missed: Missed) -> None:
    """Write the error of the utterance in which the last node was killed, if it has no result."""
    number = position.utterance
    if outputs.newest_result().get(b"utterance") == str(number).encode():
        return
    error = f"interrupted: the node was killed in mid-utterance; {missed}"
    outputs.write_missed(position, position.trial, error, outputs.partial_text(number))
