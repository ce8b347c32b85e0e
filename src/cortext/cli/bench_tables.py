"""What `cortext bench training` prints."""

from __future__ import annotations

from typing import Any

from cortext.cli.console import percent, print_lines, print_table


def print_training(result: dict[str, Any]) -> None:
    """Print the sides of every shape: whole steps, and their parts."""
    for name, shape in result["shapes"].items():
        _print_shape(name, shape, result["machine"]["device"])
    for name, why in result["missing"].items():
        print_lines(f"{name} left out: {why}")
    print_lines(f"120,000 batches of 64 elsewhere: {'; '.join(result['claims'])}")


def _print_shape(name: str, shape: dict[str, Any], device: str) -> None:
    batch, sides = shape["batch"], shape["sides"]
    if sides:
        millions = next(iter(sides.values()))["n_parameters"] / 1e6
        title = (
            f"{name}: batches of {batch['trials']} trials, {batch['padded_bins']:.0f} bins with"
            f" padding, {batch['bins'] / batch['trials']:.0f} without; {millions:.1f} M parameters;"
            f" {device}"
        )
        _print_steps(title, sides)
        parts = next(iter(sides.values()))["parts_ms"]
        rows = [
            (side, *(f"{values['parts_ms'][part]:.1f}" for part in parts))
            for side, values in sides.items()
        ]
        print_table("", ["ms, each part alone", *parts], rows)
    for side, why in shape["missing"].items():
        print_lines(f"{side} left out: {why}")
    said = {
        "ratio": "than the published loop",
        "ratio_cpu": "by processor time",
        "ratio_bf16": "both in bfloat16",
        "ratio_fp32": "both in float32",
    }
    known = [
        f"{shape[field]:.2f} times faster {words}"
        for field, words in said.items()
        if shape[field] is not None
    ]
    if known:
        print_lines(f"ours is {', '.join(known)}")
    elif sides:
        print_lines("ours alone: there is nothing to compare with")
    if rate := shape["matrix_rate"]:
        rates = ", ".join(
            f"{value / 1e9:,.0f} billion operations/s in {name}" for name, value in rate.items()
        )
        print_lines(f"large matrix products: {rates}")


def _print_steps(title: str, sides: dict[str, Any]) -> None:
    rows = []
    for side, values in sides.items():
        low, high = values["ms_10_90"]
        memory = values["memory"]
        most = (
            memory.get("peak_device_mb") or (memory["peak_rss_mb"] or 0) + memory["loaders_pss_mb"]
        )
        rows.append(
            (
                side,
                values["precision"],
                f"{values['ms']:.1f}",
                f"{low:.1f} to {high:.1f}",
                f"{values['trials_per_s']:.1f}",
                percent(values["wait_share"]),
                percent(values.get("matrix_share")),
                f"{most:,.0f} MB",
                f"{values['hours_of_120k_batches']:.1f}",
            )
        )
    columns = [
        "side",
        "in",
        "ms/step",
        "10 to 90 %",
        "trials/s",
        "waits",
        "of matrix rate",
        "peak memory",
        "h/120k",
    ]
    print_table(title, columns, rows, right_from=2)


def print_curves(result: dict[str, Any]) -> None:
    """Print where the sides have got to."""
    rows = [
        (side, values["precision"], f"{values['final_loss']:.3f}", percent(values["final_per"]))
        for side, values in result["curves"].items()
    ]
    title = f"after {result['steps']} steps from the same weights on the same batches"
    print_table(title, ["side", "in", "loss, last tenth", "PER"], rows, right_from=2)


def print_latency(result: dict[str, Any]) -> None:
    """Print what every stage of a step took in each way to run the model, the ends of
    utterances, and the targets.
    """
    modes, machine = result["modes"], result["machine"]
    title = (
        f"ms per 80 ms step, one core of {machine['processor']}, load {machine['load']:.1f}; p50 /"
        " p95 / p99 / max"
    )
    stages = next(iter(modes.values()))["stages_ms"]
    rows = [
        (name, f"{values['steps']:,}", *(_four(values["stages_ms"][stage]) for stage in stages))
        for name, values in modes.items()
    ]
    print_table(title, ["model", "steps", *stages], rows)
    print_lines(
        "total: from the bin that completes a frame to its words; ahead: what was done with the"
        " bins before it"
    )
    rows = [
        (
            name,
            _four(values["cpu_ms"]),
            _four(values["final_ms"]),
            percent(values["wer"]),
            f"{100 * values['errors']['per']:.2f} %" if values["errors"] else "-",
            "-" if result["ratios"][name] is None else f"{result['ratios'][name]:.1f}x",
        )
        for name, values in modes.items()
    ]
    columns = [
        "model",
        "processor time of both",
        "end of an utterance",
        "WER",
        "PER on the demo",
        "to torch eager",
    ]
    print_table("", columns, rows)
    for name, why in result["missing"].items():
        print_lines(f"{name} left out: {why}")
    if result["input"]["kind"] == "pseudo":
        print_lines(
            "the search got pseudo-posteriors of real phoneme errors; the model's own logits were"
            " thrown away"
        )
    met, targets = result["met"], result["targets"]
    fastest = f"fastest without more errors ({met['fastest']})"
    said = {
        f"float32, the wait: p99 <= {targets['fp32_p99_ms']:g} ms": met["fp32"],
        f"float32, all work: p99 <= {targets['fp32_p99_ms']:g} ms": met["fp32_work"],
        f"{fastest}, the wait: p99 <= {targets['fastest_p99_ms']:g} ms": met["fastest_mode"],
        f"fastest without more errors, all work: p99 <= {targets['fastest_p99_ms']:g} ms": met[
            "fastest_work"
        ],
        f"end of an utterance p99 <= {targets['final_p99_ms']:g} ms": met["final"],
    }
    for target, is_met in said.items():
        print_lines(f"{target}: {'not measured' if is_met is None else 'yes' if is_met else 'no'}")


def _four(values: dict[str, float]) -> str:
    return " / ".join(f"{values[name]:.2f}" for name in ("p50", "p95", "p99", "max"))
