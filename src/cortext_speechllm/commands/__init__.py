"""The commands of `cortext_speechllm`, which join those of cortext."""

from __future__ import annotations

from cortext.cli.tree import Group, Headings

COMMANDS: Headings = {
    "Speech LLM": {
        "speech-llm": Group(
            "Train and use an audio language model that reads neural activity.",
            {
                "assemble": "cortext_speechllm.commands.speech_llm_prepare.assemble",
                "cache": "cortext_speechllm.commands.speech_llm_prepare.cache",
                "teach": "cortext_speechllm.commands.speech_llm_prepare.teach",
                "train": "cortext_speechllm.commands.speech_llm.train",
                "evaluate": "cortext_speechllm.commands.speech_llm.evaluate",
                "decode": "cortext_speechllm.commands.speech_llm.decode",
                "memory": "cortext_speechllm.commands.speech_llm_prepare.memory",
            },
        ),
    },
}
