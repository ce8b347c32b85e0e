"""`cortext bench training`: our training loop and the published one, side by side."""
