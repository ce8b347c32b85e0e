"""Pages of the site that are generated from the program: commands and configuration keys."""
