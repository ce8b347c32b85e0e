"""The language-model server on Redis."""
