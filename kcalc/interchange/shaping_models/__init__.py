"""Models as things to be shaped: which parts are, and why others are left alone."""
