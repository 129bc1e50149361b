"""Kernel maps of attention over tokens."""
