"""Warn if transformers loads the weights of an edited model without the edits."""

from __future__ import annotations

import logging
import warnings

# a key that no model has; loading saved weights without the edits reports it
MARK = "kcalc_edits.LOAD_THIS_MODEL_WITH_kc.load_edited"
LOGGER = "transformers.modeling_utils"  # reports keys that a model does not have
UNEDITED = (
    "these weights belong to an edited model but were loaded without its edits, so the model "
    "computes something else; load it with kc.load_edited(cls, folder)"
)


class _Watching(logging.Filter):
    """A log filter that warns if a record contains the mark of edited weights."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record, which depends only on its level."""
        if MARK in record.getMessage():
            warnings.warn(UNEDITED, stacklevel=2)
        return record.levelno >= logging.getLogger("transformers").getEffectiveLevel()


def register() -> None:
    """Install the filter on the transformers logger."""
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(known, _Watching) for known in logger.filters):
        logger.addFilter(_Watching())
        logger.setLevel(1)  # the filter must see warnings that set_verbosity_error() hides
