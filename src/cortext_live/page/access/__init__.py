"""Access to the page: rules, tokens of the owner and of guests, encryption, bounded connections."""
