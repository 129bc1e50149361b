"""PyTorch models as users write them, each with the network that it is, written by hand."""

from . import convolutional, reported, signals
from .convolutional import ResNetV2
from .twin import ZOO

REPORTED = ("shared_weights", "recommender")
__all__ = ["REPORTED", "ZOO", "ResNetV2", "convolutional", "reported", "signals"]
