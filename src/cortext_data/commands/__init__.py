"""The commands of `cortext_data`, which join those of cortext."""

from __future__ import annotations

from cortext.cli.tree import Group, Headings

READERS = {
    "t12": "cortext_data.readers.t12.t12",
    "falcon-h2": "cortext_data.readers.falcon.falcon_h2",
    "handwriting": "cortext_data.readers.handwriting.handwriting",
    "inner-speech": "cortext_data.readers.inner_speech.inner_speech",
}
"""Published formats, by the name that follows `cortext import`, and the functions that read them.

A function takes the source and its options, each with a `Setting`, and returns a `Source`. Its
docstring becomes the command's help.
"""

COMMANDS: Headings = {
    "Data": {
        "simulate": "cortext_data.commands.simulate.simulate",
        "import": Group(
            "Read checkpoints, results and recordings of others.",
            {name: f"cortext_data.commands.importing.{name}" for name in (*READERS, "nwb", "mat")},
        ),
    },
    "Benchmarks and tools": {"demo": "cortext_data.commands.demo.demo"},
}
