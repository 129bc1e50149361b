"""Kernel maps of attention over tokens, and the overlaps of random rows of attention."""

from ...gaussian.softmax import Overlap, overlap_gap, row_entropy, self_overlap

__all__ = ["Overlap", "overlap_gap", "row_entropy", "self_overlap"]
