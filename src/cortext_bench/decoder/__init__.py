"""`cortext bench decoder`: our search and the peers', side by side."""
