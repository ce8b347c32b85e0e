"""Prompts and answers of an audio LLM as tokens, by its own chat template, audio marker and end."""

from __future__ import annotations

from typing import Any

from cortext.errors import LanguageModelError
from cortext_lm.llm.chat_template import render
from cortext_lm.llm.explain import explained


class Chat:
    """Prompts and answers of an audio LLM as tokens.

    Raises LanguageModelError where it has no template, no audio marker or no end.

    Attributes:
        marker, audio_token: Marker of the audio in a prompt, as text and as token.
        window: Most positions of the language model; None where its configuration names no number.
        ends: Tokens that end an answer; the first is the one that the template ends answers with.
    """

    def __init__(self, name: str, processor: Any, config: Any, generation: Any = None) -> None:
        self.name = name
        self.processor = processor
        self.tokenizer = processor.tokenizer
        self.window: int | None = (
            getattr(config.get_text_config(decoder=True), "max_position_embeddings", None) or None
        )
        self.marker: str = getattr(processor, "audio_token", None) or ""
        self.audio_token = int(getattr(config, "audio_token_id", None) or -1)
        if not self.marker or self.tokenizer.convert_tokens_to_ids(self.marker) != self.audio_token:
            raise LanguageModelError(
                f"its tokenizer has no audio marker: {self.marker or 'none'} is not token"
                f" {self.audio_token}",
                where=name,
                fix="give a model with the tokenizer that it was trained with",
            )
        self.ends = self._ends(generation)
        self._prompts: dict[str, tuple[list[int], list[int]]] = {}
        self.prompt("")

    def prompt(self, instruction: str) -> tuple[list[int], list[int]]:
        """Return the tokens before and after the audio, as the chat template puts them.

        The answer begins after the last one.
        """
        if instruction not in self._prompts:  # each batch asks for the same one
            self._prompts[instruction] = self._split(instruction)
        before, after = self._prompts[instruction]
        return list(before), list(after)

    def _split(self, instruction: str) -> tuple[list[int], list[int]]:
        """Return the two parts of a prompt, split at its audio marker."""
        text = self._render([_question(instruction)], True)
        tokens = self._encode(text)
        if tokens.count(self.audio_token) != 1:
            raise LanguageModelError(
                f"its chat template puts {tokens.count(self.audio_token)} audio markers"
                f" {self.marker} into a prompt with one audio",
                where=self.name,
                fix="give a model whose chat template knows audio",
            )
        at = tokens.index(self.audio_token)
        return tokens[:at], tokens[at + 1 :]

    def answer(self, sentence: str) -> list[int]:
        """Return the tokens of an answer, its end token included."""
        return [*self._encode(sentence), self.ends[0]]

    def text(self, tokens: list[int]) -> str:
        """Return the sentence of an answer's tokens, without markers and surrounding blanks."""
        decoded: str = self.tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return decoded.strip()

    def _ends(self, generation: Any) -> list[int]:
        """Return the tokens that end an answer, by template, generation settings and tokenizer."""
        question = _question("")
        answer = "yes"
        before = self._render([question], True) + answer
        answered = self._render([question, {"role": "assistant", "content": answer}], False)
        rest = self._encode(answered.removeprefix(before)) if answered.startswith(before) else []
        named = getattr(generation, "eos_token_id", None)
        more = named if isinstance(named, list) else [named]
        special = set(self.tokenizer.all_special_ids)
        ends = [token for token in rest[:1] if token in special]
        ends += [token for token in (self.tokenizer.eos_token_id, *more) if token is not None]
        if not ends:
            raise LanguageModelError(
                "has no token that ends an answer: none in its chat template, and no EOS",
                where=self.name,
                fix="name one as eos_token in its tokenizer_config.json",
            )
        return list(dict.fromkeys(ends))

    def _render(self, conversation: list[dict[str, Any]], asks: bool) -> str:
        with explained(self.name, "its chat template cannot be used"):
            if not self.processor.chat_template:
                fix = "give a model that was trained on chats, such as an -Instruct"
                raise LanguageModelError("has no chat template", where=self.name, fix=fix)
            return render(
                self.processor.chat_template,
                conversation,
                self.tokenizer,
                add_generation_prompt=asks,
            )

    def _encode(self, text: str) -> list[int]:
        with explained(self.name, "its tokenizer failed"):
            tokens: list[int] = (
                self.tokenizer.encode(text, add_special_tokens=False) if text else []
            )
        return tokens


def _question(instruction: str) -> dict[str, Any]:
    # Templates ask for one of the keys, or for the type.
    audio = {"type": "audio", "audio_url": "", "audio": ""}
    return {"role": "user", "content": [audio, {"type": "text", "text": instruction}]}
