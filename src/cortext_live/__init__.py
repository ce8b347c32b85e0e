"""Live decoding: bins of neural features in, words out, for rigs (Redis, BRAND) and a web page."""
