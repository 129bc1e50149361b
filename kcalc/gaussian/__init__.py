"""Gaussian expectations, by quadrature in double precision or as certified balls."""
