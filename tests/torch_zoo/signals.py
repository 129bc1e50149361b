"""Networks for other things than classes of images: segmentation, audio, sequences of tokens."""

from __future__ import annotations
