"""One module per section of the book, each with ``run(options) -> Section``."""
