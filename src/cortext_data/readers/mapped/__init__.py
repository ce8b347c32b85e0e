"""Recordings of any lab, as a mapping file describes them."""
