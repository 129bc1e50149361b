"""Gaussian expectations, by quadrature in double precision or certified by balls."""
