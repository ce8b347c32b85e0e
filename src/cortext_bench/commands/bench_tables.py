"""Tables that the commands of `cortext bench` print."""

from __future__ import annotations

from typing import Any

from cortext.cli.console import percent, print_lines, print_table


def print_training(result: dict[str, Any]) -> None:
    """Print the sides of every shape: whole steps, and their parts."""
    for name, shape in result["shapes"].items():
        _print_shape(name, shape, result["machine"]["device"])
    for name, why in result["missing"].items():
        print_lines(f"{name} left out: {why}")
    if result["claims"]:
        print_lines(f"120,000 batches of 64 elsewhere: {'; '.join(result['claims'])}")


def _print_shape(name: str, shape: dict[str, Any], device: str) -> None:
    batch = shape["batch"]
    sides = shape["sides"]
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
                percent(values["busy_share"]),
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
        "GPU busy",
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
    """Print times of each stage of a step and of the ends of utterances, beside the targets."""
    _print_stages(result["modes"], result["machine"])
    _print_work(result["modes"], result["ratios"])
    for name, why in result["missing"].items():
        print_lines(f"{name} left out: {why}")
    if n_before := result["input"]["frames_before"]:
        print_lines(f"attention looked back {n_before:,} frames in every step")
    if result["input"]["kind"] == "pseudo":
        print_lines(
            "the search got pseudo-posteriors of real phoneme errors; the model's own logits were"
            " thrown away"
        )
    _print_targets(result["met"], result["targets"])


def _print_stages(modes: dict[str, Any], machine: dict[str, Any]) -> None:
    """Print what each stage of a step takes, by model."""
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


def _print_work(modes: dict[str, Any], ratios: dict[str, Any]) -> None:
    """Print processor time, the ends of utterances and errors, by model."""
    rows = [
        (
            name,
            _four(values["cpu_ms"]),
            _four(values["final_ms"]),
            percent(values["wer"]),
            f"{100 * values['errors']['per']:.2f} %" if values["errors"] else "-",
            _number(ratios[name], "{:.1f}x"),
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


def _print_targets(met: dict[str, Any], targets: dict[str, Any]) -> None:
    fastest = f"fastest without more errors ({met['fastest']})"
    fastest_p99 = f"p99 <= {targets['fastest_p99_ms']:g} ms"
    said = {
        f"float32, the wait: p99 <= {targets['fp32_p99_ms']:g} ms": met["fp32"],
        f"float32, all work: p99 <= {targets['fp32_p99_ms']:g} ms": met["fp32_work"],
        f"{fastest}, the wait: {fastest_p99}": met["fastest_mode"],
        f"fastest without more errors, all work: {fastest_p99}": met["fastest_work"],
        f"end of an utterance p99 <= {targets['final_p99_ms']:g} ms": met["final"],
        "no way of ours does more work than torch's own modules": met["no_more_work_than_torch"],
    }
    if "fp32_work_p50" in met:
        most_ms, fastest_ms = targets["fp32_work_p50_ms"], targets["fastest_work_p50_ms"]
        said[f"float32, all work: median <= {most_ms:g} ms"] = met["fp32_work_p50"]
        name = f"fastest without more errors, all work: median <= {fastest_ms:g} ms"
        said[name] = met["fastest_work_p50"]
    for target, is_met in said.items():
        print_lines(f"{target}: {'not measured' if is_met is None else 'yes' if is_met else 'no'}")


def _four(values: dict[str, float]) -> str:
    return " / ".join(f"{values[name]:.2f}" for name in ("p50", "p95", "p99", "max"))


def print_decoder(result: dict[str, Any]) -> None:
    """Print times, word errors and memory of each search."""
    _print_times(result)
    _print_errors(result["decoders"])
    _print_sizes(result["decoders"])
    for name, why in result["missing"].items():
        print_lines(f"{name} left out: {why}")
    for name, decoder in result["decoders"].items():
        if decoder["note"]:
            print_lines(f"{name}: {decoder['note']}")
    _print_ours(result)


def _print_times(result: dict[str, Any]) -> None:
    source = result["input"]
    title = (
        f"{source['utterances']} utterances, {source['frames']} frames,"
        f" {percent(source['blank_share'])} blank; {result['lm']['lexicon_words']:,} words,"
        f" {result['lm']['order']}-gram"
    )
    rows = [
        (
            name,
            point,
            f"{values['ms_per_frame']:.4f}",
            f"{values['ms_per_frame_p99']:.4f}",
            _number(values["ms_per_nonblank_frame"], "{:.4f}"),
            _number(result["ratios"].get(name, {}).get(point), "{:.1f}x faster"),
        )
        for name, decoder in result["decoders"].items()
        for point, values in decoder["points"].items()
    ]
    columns = ["search", "settings", "ms/frame", "p99", "ms/non-blank", "cortext is"]
    print_table(title, columns, rows, right_from=2)


def _print_errors(decoders: dict[str, Any]) -> None:
    rows = [
        (
            name,
            point,
            percent(values["wer"]),
            _interval(values["wer_ci95"]),
            percent(values["oracle_wer"]),
        )
        for name, decoder in decoders.items()
        for point, values in decoder["points"].items()
    ]
    columns = ["search", "settings", "WER", "95 % interval", "best of 100"]
    print_table("", columns, rows, right_from=2)


def _print_sizes(decoders: dict[str, Any]) -> None:
    rows = [
        (
            name,
            decoder["version"],
            f"{decoder['load_s']:.2f} s",
            f"{decoder['memory']['peak_rss_mb']:.0f} MB",
        )
        for name, decoder in decoders.items()
    ]
    print_table("", ["search", "version", "loading", "peak memory"], rows, right_from=2)


def _print_ours(result: dict[str, Any]) -> None:
    ours = result.get("ours")
    if not ours:
        return
    memory = result["decoders"]["cortext"]["memory"]
    print_lines(
        f"cortext, frame by frame: median {ours['frame_ms_median']:.4f} ms, p99"
        f" {ours['frame_ms_p99']:.3f} ms, worst {ours['frame_ms_worst']:.2f} ms, end of an"
        f" utterance {ours['end_ms_worst']:.2f} ms; worst at acoustic scale 1 and twice the beam"
        f" {ours['strained_frame_ms_worst']:.2f} ms",
        f"two threads: {ours['two_threads_speedup']:.2f}x one; "
        f"peak memory beyond the model's file: {memory['peak_beyond_model_mb']:.0f} MB",
    )
    if result["ratio"] is not None:
        print_lines(
            f"ratio to flashlight at equal word errors: {result['ratio']:.1f}; by processor time"
            f" {result['ratio_cpu']:.1f}, and {result['ratio_near_cpu']:.1f} with what tuning found"
            " within 1.5 points"
        )


def _interval(bounds: list[float | None]) -> str:
    return " to ".join(percent(bound) for bound in bounds)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def print_program(result: dict[str, Any]) -> None:
    """Print memory, operations and estimated times of each compiled training step."""
    shapes = result["shapes"]
    target = next(iter(shapes.values()))["target"]
    title = (
        f"one step on one of {target['chips']} chips ({target['topology']}), trials of"
        f" {target['n_bins']} bins, {target['n_features']} features, {target['n_days']} days;"
        " compiled, not run"
    )
    _print_program(title, shapes)
    _print_memory(shapes)
    _print_estimate(shapes)
    for name, why in result["missing"].items():
        print_lines(f"{name} left out: {why}")
    for name, found in shapes.items():
        for check, holds in found["checks"].items():
            print_lines(f"{name}: {check}: {'yes' if holds else 'NO'}")
    print_lines(
        "times are estimates of what the program needs at least; nothing was measured on a TPU"
    )
    print_lines(f"{result['batches']:,} batches elsewhere: {'; '.join(result['claims'])}")


def _print_program(title: str, shapes: dict[str, Any]) -> None:
    rows = [
        (
            name,
            f"{found['target']['parameters'] / 1e6:.1f} M",
            found["target"]["batch"],
            f"{found['flops'] / 1e9:,.0f} G",
            f"{found['flops_by_formula'] / 1e9:,.0f} G",
            f"{found['hbm_bytes'] / 1e9:.2f} GB",
            f"{sum(exchange['n_bytes'] for exchange in found['exchanges']) / 1e6:,.0f} MB",
            f"{found['compile_s']:.0f}",
        )
        for name, found in shapes.items()
    ]
    columns = [
        "shape",
        "parameters",
        "batch",
        "operations",
        "by formula",
        "HBM traffic",
        "exchanged",
        "compiled in s",
    ]
    print_table(title, columns, rows)


def _print_memory(shapes: dict[str, Any]) -> None:
    parts = ("arguments", "temporaries", "output", "aliased", "program", "total")
    rows = [
        (name, *(f"{found['memory'][part] / 2**30:.2f}" for part in parts))
        for name, found in shapes.items()
    ]
    print_table("", ["GiB of a chip's memory", *parts], rows)


def _print_estimate(shapes: dict[str, Any]) -> None:
    estimates = {name: found["estimate"] for name, found in shapes.items()}
    latencies = [each["latency_us"] for each in next(iter(estimates.values()))["latencies"]]
    rows = [
        (
            name,
            *(
                f"{found[part]:.1f}"
                for part in (
                    "compute_ms",
                    "memory_ms",
                    "overlapped_ms",
                    "exchange_ms",
                    "roofline_ms",
                )
            ),
            f"{found['waits']:,}",
            *(f"{each['ms']:.1f}" for each in found["latencies"]),
            "-" if found["schedule_ms"] is None else f"{found['schedule_ms']:.1f}",
        )
        for name, found in estimates.items()
    ]
    waits = [f"at {latency:g} µs each" for latency in latencies]
    parts = ["products", "memory", "overlapped exchange", "exchange", "roofline", "waits"]
    print_table("", ["ms a step, estimated", *parts, *waits, "compiler's"], rows)
    rows = [
        (
            name,
            f"{found['hours']:.1f}",
            *(f"{each['hours']:.1f}" for each in found["latencies"]),
            "-" if found["schedule_hours"] is None else f"{found['schedule_hours']:.1f}",
        )
        for name, found in estimates.items()
    ]
    print_table("", ["h of 120,000, estimated", "roofline", *waits, "compiler's"], rows)
