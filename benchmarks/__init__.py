"""The benchmark book: ``python -m benchmarks`` from the repository root measures everything and
writes benchmarks/RESULTS.md.

Nothing of kcalc is imported here, so that a peer's environment can run :mod:`benchmarks.peer_jobs`.
"""
