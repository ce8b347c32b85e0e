"""The commands of `cortext_bench`, which join those of cortext."""

from __future__ import annotations

from cortext.cli.tree import Group, Headings

COMMANDS: Headings = {
    "Benchmarks and tools": {
        "doctor": "cortext_bench.commands.doctor.doctor",
        "bench": Group(
            "Compare cortext with the best alternatives, side by side.",
            {
                "decoder": "cortext_bench.commands.bench.decoder",
                "training": "cortext_bench.commands.bench.training",
                "latency": "cortext_bench.commands.bench.latency",
                "tpu-compile": "cortext_bench.commands.bench.tpu_compile",
                "llm": "cortext_bench.commands.bench_llm.llm",
                "speech-llm": "cortext_bench.commands.bench_llm.speech_llm",
            },
        ),
    },
}
