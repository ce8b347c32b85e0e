"""The commands of `cortext_data`, which join those of cortext."""

from __future__ import annotations

from cortext.cli.tree import Group, Headings

COMMANDS: Headings = {
    "Data": {
        "simulate": "cortext_data.commands.simulate.simulate",
        "import": Group(
            "Read checkpoints, results and recordings of others.",
            {
                "t12": "cortext_data.commands.importing.t12",
                "falcon-h2": "cortext_data.commands.importing.falcon_h2",
                "handwriting": "cortext_data.commands.importing.handwriting",
                "inner-speech": "cortext_data.commands.importing.inner_speech",
                "nwb": "cortext_data.commands.importing.nwb",
                "mat": "cortext_data.commands.importing.mat",
            },
        ),
    },
    "Benchmarks and tools": {"demo": "cortext_data.commands.demo.demo"},
}
