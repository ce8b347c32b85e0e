"""N-gram models built from texts: `build` reads, counts, estimates, interpolates and writes one.

`counts` and `estimate` work in DuckDB (`database`); `lmplz` lets KenLM estimate instead. The core
reads what they write, and asks for `build` by an entry point.
"""
