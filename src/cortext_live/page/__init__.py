"""The page of `cortext serve`: the web server, the decoding behind it and its assets."""
