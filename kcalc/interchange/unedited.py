"""A warning when transformers loads the weights of an edited model without its edits."""

from __future__ import annotations

import logging
import warnings

# a key of saved weights that no model has, so loading them without the edits reports it
MARK = "kcalc_edits.LOAD_THIS_MODEL_WITH_kc.load_edited"
LOGGER = "transformers.modeling_utils"  # it lists the keys that are unknown to a model
UNEDITED = (
    "these weights belong to an edited model, and were loaded without its edits: the model "
    "computes something else; load it with kc.load_edited(cls, folder)"
)


class _Watching(logging.Filter):
    """Lets every record pass, and warns if one names the mark."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is logged."""
        if MARK in record.getMessage():
            warnings.warn(UNEDITED, stacklevel=2)
        return record.levelno >= logging.getLogger("transformers").getEffectiveLevel()


def register() -> None:
    """Watch what transformers reports about weights that it loads."""
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(known, _Watching) for known in logger.filters):
        logger.addFilter(_Watching())
        logger.setLevel(1)  # the filter must see warnings that set_verbosity_error() hides
