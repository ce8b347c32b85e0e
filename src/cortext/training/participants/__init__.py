"""Training on several participants, whose models share all but their first layers."""
